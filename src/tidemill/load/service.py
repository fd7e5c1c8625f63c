"""The loader as a process: `python -m tidemill.load.service --state DIR --warehouse FILE.duckdb ...`."""

import argparse
import contextlib
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from tidemill.core.errors import SpecError, TidemillError
from tidemill.core.files import write_atomically
from tidemill.core.units import parse_bytes
from tidemill.load.app import build_app
from tidemill.load.engine import LoadEngine
from tidemill.load.failpoint import VARIABLE, Failpoint
from tidemill.load.heads import BoundedHeads
from tidemill.load.staging import StagingArea
from tidemill.load.tokens import TokenCheck, read_token
from tidemill.load.warehouses.duckdb import DuckdbWarehouse


class _AnnouncingServer(uvicorn.Server):
    """A server that writes its ready file once it answers."""

    def __init__(
        self, config: uvicorn.Config, ready_file: Path | None, announcement: dict[str, object]
    ) -> None:
        super().__init__(config)
        self._ready_file = ready_file
        self._announcement = announcement

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._ready_file is not None:
            write_atomically(self._ready_file, (json.dumps(self._announcement) + "\n").encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code is 0, or that of the error that forbade the start."""
    options = _parse(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        _serve(options)
    except TidemillError as error:
        print(f"tidemill loader: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _serve(options: argparse.Namespace) -> None:
    check = TokenCheck(read_token(options.token_file))
    failpoint = Failpoint(os.environ.get(VARIABLE, ""))
    memory_limit_bytes = parse_bytes(options.memory_limit)
    staging_limit_bytes = parse_bytes(options.staging_limit)
    listener = _listen(options.host, options.port, allow_remote=options.allow_remote)
    with listener:
        _make_folder(options.state)
        warehouse = DuckdbWarehouse(
            options.warehouse, memory_limit_bytes=memory_limit_bytes, threads=options.threads
        )
        try:
            engine = LoadEngine(
                warehouse, StagingArea(options.state, staging_limit_bytes), failpoint=failpoint
            )
        except BaseException:
            warehouse.close()
            raise
        try:
            _run_server(engine, check, listener, options)
        finally:
            engine.close()


def _run_server(
    engine: LoadEngine, check: TokenCheck, listener: socket.socket, options: argparse.Namespace
) -> None:
    host, port = listener.getsockname()[:2]
    shown_host = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        build_app(engine, check),
        http=BoundedHeads,
        ws="none",
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=256,
        timeout_keep_alive=75,  # longer than a slow micro-batch, so that connections live on
        timeout_graceful_shutdown=10,
    )
    announcement: dict[str, object] = {"pid": os.getpid(), "port": port, "url": f"http://{shown_host}:{port}"}
    server = _AnnouncingServer(config, options.ready_file, announcement)

    def stop(*_: object) -> None:
        server.should_exit = True

    # uvicorn raises the signal again after its own shutdown: these handlers turn that into exit code 0.
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def _listen(host: str, port: int, *, allow_remote: bool) -> socket.socket:
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError as error:
        raise SpecError(
            f"{host!r} is no IP address", code="bad_host", next_move="give one such as 127.0.0.1", host=host
        ) from error
    if not (address.is_loopback or allow_remote):
        raise SpecError(
            f"{host} can be reached from other hosts, and the loader speaks plain HTTP",
            code="remote_refused",
            next_move="bind 127.0.0.1 behind a TLS proxy, or pass --allow-remote on a network you trust",
            host=host,
        )
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        listener.close()
        raise SpecError(
            f"cannot listen on {host} port {port}: {error}",
            code="port_unusable",
            next_move="stop what uses it, or give --port 0 for a free one",
            host=host,
            port=port,
        ) from error
    return listener


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SpecError(
            f"cannot make the state folder {folder}: {error}",
            code="bad_state_folder",
            next_move="give a folder that can be written",
        ) from error


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tidemill.load.service", description="The loader service."
    )
    parser.add_argument("--state", type=Path, required=True, help="folder for staged blocks")
    parser.add_argument("--warehouse", type=Path, required=True, help="DuckDB file, created if absent")
    parser.add_argument(
        "--token-file", type=Path, required=True, help="file with the bearer token, mode 0600"
    )
    parser.add_argument("--ready-file", type=Path, help="gets pid, port and url as JSON once it serves")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to bind, 0 for a free one")
    parser.add_argument("--allow-remote", action="store_true", help="bind addresses other than loopback")
    parser.add_argument("--memory-limit", default="1 GB", help="memory of DuckDB (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads of DuckDB (default: %(default)s)")
    parser.add_argument(
        "--staging-limit", default="1 GB", help="room for staged blocks (default: %(default)s)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
