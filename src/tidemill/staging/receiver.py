"""The receiver: blocks from many sources over TCP into one staging log.

Run as `python -m tidemill.staging.receiver --log PATH --ready-file FILE`.
"""

import argparse
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from tidemill.core.block import check_source_name, decode_block, schema_fingerprint
from tidemill.core.errors import SourceError, TidemillError
from tidemill.core.files import write_atomically
from tidemill.core.units import parse_bytes
from tidemill.core.wire import FRAME_FORMAT, Frame, Kind, bad_frame, block_of, receive_frame
from tidemill.staging.appender import Appender, Arrival
from tidemill.staging.log import StagingLog
from tidemill.staging.peer import Peer, refuse

_log = logging.getLogger(__name__)
MAX_CONNECTIONS = 256


class Receiver:
    """A TCP server that fills a log: one thread a connection checks blocks, one appender writes them.

    Threads, since checking a block is Arrow and SHA-256 work that runs outside the interpreter's lock, and
    one connection a source keeps them few.
    """

    def __init__(self, log: StagingLog, listener: socket.socket) -> None:
        self._log = log
        self._fingerprint = schema_fingerprint(log.schema)
        self._listener = listener
        self._appender = Appender(log)
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        threading.Thread(target=self._accept, name="tidemill-accept", daemon=True).start()

    def stop(self) -> None:
        """Take no more connections, finish what was queued and close the log."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._appender.stop()
        self._log.close()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            if not self._slots.acquire(blocking=False):
                _log.warning("more than %d connections: one was refused", MAX_CONNECTIONS)
                link.close()
                continue
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        try:
            with link:
                peer = Peer(link)
                try:
                    self._converse(peer)
                except TidemillError as error:
                    _log.warning("connection of %r ends: %s", peer.source, error)
                    peer.part(refuse(error.code, str(error), retryable=error.retryable))
                except OSError as error:
                    _log.info("connection of %r ends: %s", peer.source, error)
        finally:
            self._slots.release()

    def _converse(self, peer: Peer) -> None:
        peer.source = self._greeted_source(receive_frame(peer.link))
        self._appender.put(Arrival(peer))
        while True:
            frame = receive_frame(peer.link)
            if frame.kind is not Kind.BLOCK:
                raise bad_frame(f"{frame.kind.name} where a block belongs")
            block = block_of(frame)
            if block.source != peer.source:
                raise bad_frame(f"a block of {block.source!r} on the connection of {peer.source!r}")
            decode_block(block, self._log.schema)
            self._appender.put(Arrival(peer, block))

    def _greeted_source(self, frame: Frame) -> str:
        if frame.kind is not Kind.HELLO or frame.header.get("format") != FRAME_FORMAT:
            raise bad_frame(f"a conversation begins with a hello of format {FRAME_FORMAT}")
        source = check_source_name(str(frame.header.get("source")))
        if frame.header.get("schema") != self._fingerprint:
            raise SourceError(
                f"{source} has schema {frame.header.get('schema')}, the staging log has {self._fingerprint}",
                code="schema_mismatch",
                next_move="give source and staging log the same schema",
            )
        return source


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or a `SourceError` that names the address."""
    try:
        return socket.create_server((host, port), backlog=64)
    except OSError as error:
        raise SourceError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            code="port_in_use",
            next_move="stop the process that uses it, or give another --port (0 picks a free one)",
            host=host,
            port=port,
        ) from error


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tidemill.staging.receiver", description="Fill a staging log over TCP."
    )
    parser.add_argument("--log", type=Path, required=True, help="folder of an existing staging log")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--max-bytes", type=parse_bytes, default=None, help='such as "4 GB"')
    parser.add_argument(
        "--ready-file", type=Path, default=None, help="gets port and pid as JSON once it listens"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        listener = listen(options.host, options.port)
    except SourceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        receiver = Receiver(StagingLog.open(options.log, max_bytes=options.max_bytes), listener)
    except TidemillError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.ready_file:
        ready = {"format": 1, "host": options.host, "port": listener.getsockname()[1], "pid": os.getpid()}
        write_atomically(options.ready_file, json.dumps(ready).encode())
    stop.wait()
    receiver.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

__all__ = ["Receiver", "listen", "main"]
