"""A PostgreSQL server of the benchmark's own on loopback, its data kept between runs."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tidemill.core.errors import StoreError

START_S = 60.0
_UNPRIVILEGED = ("postgres", "nobody")
"""The server refuses to run as root."""


def programs() -> Path | None:
    """Folder of `initdb` and `postgres`: the newest of Debian's, or that on the PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda file: int(file.parts[-3]))
    found = str(debian[-1]) if debian else shutil.which("initdb")
    return Path(found).parent if found else None


@contextmanager
def postgres(folder: Path, shared_buffers_bytes: int, fill: Callable[[Any], None]) -> Iterator[str]:
    """Connection string of a server on the data in `folder`, which `fill` put there when there was none.

    Args:
        folder: Of the server's files; appears under its name when it is full.
        shared_buffers_bytes: What it may cache.
        fill: Takes an ADBC connection, once.
    """
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        _initialise(part)
        with _running(part, 256 * 1024 * 1024) as uri, closing(connect(uri)) as connection:
            fill(connection)
            connection.commit()
        part.rename(folder)
    with _running(folder, shared_buffers_bytes) as uri:
        yield uri


def connect(uri: str) -> Any:
    from adbc_driver_postgresql import dbapi  # type: ignore[import-untyped]

    return dbapi.connect(uri)


def _initialise(folder: Path) -> None:
    place = programs()
    if place is None:
        raise StoreError(
            "PostgreSQL is not installed: no initdb in /usr/lib/postgresql or on the PATH",
            code="no_postgres",
            next_move="install PostgreSQL, or leave its contenders out",
        )
    folder.mkdir(parents=True)
    user = _server_user()
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    setup = ["-A", "trust", "-U", "tidemill", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
    command = [*_as_user(user), str(place / "initdb"), "-D", str(folder), *setup]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode:
        raise _failed(done.stderr)


@contextmanager
def _running(folder: Path, shared_buffers_bytes: int) -> Iterator[str]:
    place, port = programs(), free_port()
    assert place is not None
    settings = {
        "port": port,
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "shared_buffers": f"{max(1, shared_buffers_bytes // 2**20)}MB",
        "fsync": "off",
        "max_wal_size": "4GB",
        "maintenance_work_mem": "512MB",
    }
    given = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    uri = f"postgresql://tidemill@127.0.0.1:{port}/postgres"
    with tempfile.TemporaryFile("w+") as words:
        # No pg_ctl: the server stays our child, and ends when we are killed with our group.
        command = [*_as_user(_server_user()), str(place / "postgres"), "-D", str(folder), *given]
        server = subprocess.Popen(command, stdout=words, stderr=words, cwd="/")
        try:
            _wait_for(uri, server, words)
            yield uri
        finally:
            server.terminate()
            server.wait()


def _wait_for(uri: str, server: "subprocess.Popen[bytes]", words: Any) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            connect(uri).close()
        except Exception as error:  # the driver's errors share no public root
            if server.poll() is not None or time.monotonic() > deadline:
                words.seek(0)
                raise _failed(words.read()) from error
            time.sleep(0.1)
        else:
            return


def _failed(words: str) -> StoreError:
    last = (words.strip().splitlines() or ["no word from it"])[-1]
    return StoreError(
        f"PostgreSQL does not start: {last}",
        code="no_postgres",
        next_move="mend what it names, or give --data a folder that its user can reach",
    )


def _server_user() -> pwd.struct_passwd | None:
    if os.getuid() != 0:
        return None
    known = {user.pw_name: user for user in pwd.getpwall()}
    return next(known[name] for name in _UNPRIVILEGED if name in known)


def _as_user(user: pwd.struct_passwd | None) -> list[str]:
    if user is None:
        return []
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


__all__ = ["connect", "free_port", "postgres", "programs"]
