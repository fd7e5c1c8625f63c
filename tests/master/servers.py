"""Databases for tests: a PostgreSQL server of their own on loopback, gone afterwards, and files of the other engines."""

import contextlib
import datetime as dt
import decimal
import os
import pwd
import shutil
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi

ENGINES = ("postgresql", "sqlite", "duckdb")
_UNPRIVILEGED = ("postgres", "nobody")  # the server refuses to run as root


@dataclass
class Database:
    """A database that tests write to, each statement in a transaction of its own."""

    engine: str
    address: str
    """What `MasterTable.open` takes."""
    run: Callable[[str, list[Any] | None], Any]

    def execute(self, statement: str) -> None:
        self.run(statement, None)

    def create(self, name: str, columns: str, rows: pa.Table, *, index: str | None) -> None:
        """A new table of that name with these rows, and an index on the columns named."""
        self.execute(f"DROP TABLE IF EXISTS {name}")
        self.execute(f"CREATE TABLE {name} ({columns})")
        if index:
            self.execute(f"CREATE INDEX {name}_key ON {name} ({index})")
        self.insert(name, rows)

    def insert(self, name: str, rows: pa.Table) -> None:
        mark = "$" if self.engine != "sqlite" else "?"
        marks = ", ".join(f"{mark}{number + 1}" for number in range(rows.num_columns))
        if rows.num_rows:
            self.run(f"INSERT INTO {name} VALUES ({marks})", rows.combine_chunks().to_batches())


@contextlib.contextmanager
def database(engine: str, folder: Path) -> Iterator[Database]:
    """A fresh database; of PostgreSQL on a server of its own."""
    if engine == "postgresql":
        with postgres() as uri:
            yield Database(engine, uri, lambda sql, rows: _run_in_postgres(uri, sql, rows))
    elif engine == "sqlite":
        with contextlib.closing(sqlite3.connect(folder / "db.sqlite", isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            address = str(folder / "db.sqlite")
            yield Database(engine, address, lambda sql, rows: _run_in_sqlite(connection, sql, rows))
    else:
        with contextlib.closing(duckdb.connect(folder / "db.duckdb")) as connection:
            address = str(folder / "db.duckdb")
            yield Database(engine, address, lambda sql, rows: _run_in_duckdb(connection, sql, rows))


def _run_in_postgres(uri: str, sql: str, rows: list[pa.RecordBatch] | None) -> None:
    with contextlib.closing(dbapi.connect(uri)) as connection:
        with connection.cursor() as cursor:
            cursor.executemany(sql, rows[0]) if rows else cursor.execute(sql)
        connection.commit()


def _run_in_sqlite(connection: sqlite3.Connection, sql: str, rows: list[pa.RecordBatch] | None) -> None:
    if rows is None:
        connection.execute(sql)
        return
    connection.execute("BEGIN")
    connection.executemany(sql, [tuple(map(_as_sqlite, row.values())) for row in rows[0].to_pylist()])
    connection.execute("COMMIT")


def _as_sqlite(value: Any) -> Any:
    if isinstance(value, dt.date):
        return value.isoformat(" ") if isinstance(value, dt.datetime) else value.isoformat()
    return float(value) if isinstance(value, decimal.Decimal) else value


def _run_in_duckdb(connection: Any, sql: str, rows: list[pa.RecordBatch] | None) -> None:
    if rows is None:
        connection.execute(sql)
        return
    connection.register("incoming", pa.Table.from_batches(rows))
    connection.execute(f"INSERT INTO {sql.split()[2]} SELECT * FROM incoming")
    connection.unregister("incoming")


def programs() -> Path | None:
    """Folder of `initdb` and `pg_ctl`: the newest of Debian's, or that on the PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda file: int(file.parts[-3]))
    found = str(debian[-1]) if debian else shutil.which("initdb")
    return Path(found).parent if found else None


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Connection string of a fresh server; without its programs the test is skipped, in CI it fails."""
    folder = programs()
    if folder is None:
        why = "PostgreSQL is not installed (no initdb in /usr/lib/postgresql or on the PATH)"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    home = Path(tempfile.mkdtemp(prefix="tidemill-postgres-"))
    as_user = _as_unprivileged(home)
    port = _free_port()
    options = f"-F -p {port} -k {home} -c listen_addresses=127.0.0.1 -c shared_buffers=32MB"
    try:
        setup = ["-A", "trust", "-U", "tidemill", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        _run([*as_user, str(folder / "initdb"), "-D", str(home / "data"), *setup])
        control = [*as_user, str(folder / "pg_ctl"), "-D", str(home / "data"), "-w"]
        _run([*control, "-l", str(home / "log"), "-o", options, "start"])
        try:
            yield f"postgresql://tidemill@127.0.0.1:{port}/postgres"
        finally:
            _run([*control, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _as_unprivileged(home: Path) -> list[str]:
    """What stands before a command of the server; `home` then belongs to its user."""
    if os.getuid() != 0:
        return []
    known = {user.pw_name: user for user in pwd.getpwall()}
    user = next(known[name] for name in _UNPRIVILEGED if name in known)
    os.chown(home, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _run(command: list[str]) -> None:
    # Into a file: the server inherits the output, and a pipe would stay open as long as it runs.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(command, stdout=output, stderr=output, check=False, cwd="/")
        output.seek(0)
        assert done.returncode == 0, output.read().decode(errors="replace")


__all__ = ["ENGINES", "Database", "database", "postgres"]
