"""Capture from an SQLite application: its connection comes from here, all else stays as it is."""

import fcntl
import os
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemill.capture.hooks.hand_over import HandOver
from tidemill.capture.hooks.sqlite_connection import CapturingConnection, Gathering
from tidemill.capture.regulator import SourceRegulator
from tidemill.capture.rows import Row
from tidemill.core.errors import SourceError, SpecError

COMMITTED_AT = pa.field("_committed_at", pa.timestamp("us", tz="UTC"))
_MAX_COLUMNS = 100  # SQLite gives a function at most 127 arguments
_BUSY = (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED
_READ_WAIT_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class SqliteCaptureStats:
    """Counts since the start.

    Attributes:
        changes_not_captured: Rows updated, deleted or replaced, also when that was rolled back; not captured yet.
        late_rows: Rows inserted at or below a position handed over before.
    hook_seconds: Time that gathering and handing over took from the application, all threads together.
    """

    changes_not_captured: int
    late_rows: int
    hook_seconds: float


class SqliteCapture:
    """Rows inserted into one table, seen after their commit.

    A temporary trigger hands each new row, defaults included, to the connection, which passes them on
    once their transaction is committed. Neither the database file nor its schema changes. Where certainty is missing
    (ROLLBACK TO, OR REPLACE, scripts, failed statements) the table is read by position instead, which is also what
    happens at the start: so rows of an application that died between commit and hand-over are found.

    Each row gets a last column `_committed_at`: the time right after its commit, NULL for rows that were read.

        regulator = SourceRegulator("shop", SqliteCapture.schema_for(schema), "127.0.0.1:7070", spool_dir="spool")
        connection = SqliteCapture(regulator, table="sales", schema=schema, position="id").connect("shop.db")

    Only one process may capture from a database file; it may have many connections and threads.
    """

    def __init__(self, regulator: SourceRegulator, *, table: str, schema: pa.Schema, position: str) -> None:
        if position not in schema.names or len(schema) > _MAX_COLUMNS:
            raise SpecError(
                f"the schema of {table} must name the position column {position!r} and at most {_MAX_COLUMNS} columns",
                code="bad_columns",
                next_move=f"add {position!r} to the schema, or capture fewer columns",
            )
        if not regulator.schema.equals(self.schema_for(schema)):
            raise SpecError(
                f"the regulator of {regulator.source} has another schema than the rows of {table}",
                code="schema_mismatch",
                next_move="build the regulator with SqliteCapture.schema_for(schema)",
            )
        self._regulator, self._table, self._position = regulator, table, position
        self._columns = list(schema.names)
        self._lock = threading.Lock()
        self._file: Path | None = None
        self._lock_handle = -1
        self._order: HandOver | None = None
        self._reader: sqlite3.Connection | None = None
        self._pid = os.getpid()

    @staticmethod
    def schema_for(schema: pa.Schema) -> pa.Schema:
        """The schema of captured rows: the table's columns and `_committed_at`."""
        return schema.append(COMMITTED_AT)

    def connect(self, path: Path | str, **options: Any) -> sqlite3.Connection:
        """A connection as from `sqlite3.connect`, whose committed inserts are captured."""
        if os.getpid() != self._pid:
            raise SourceError(
                "this capture was made before a fork",
                code="forked",
                next_move="make regulator and capture in the process that uses them",
            )
        factory = options.pop("factory", CapturingConnection)
        if not issubclass(factory, CapturingConnection):
            factory = type(f"Capturing{factory.__name__}", (CapturingConnection, factory), {})
        connection: CapturingConnection = factory(path, **options)
        try:
            with self._lock:
                order = self._start(connection)
            self._watch(connection, Gathering(order))
        except BaseException:
            connection.close()
            raise
        return connection

    def reconcile(self) -> None:
        """Read the table again behind the last block; done by itself at the start and whenever in doubt."""
        self._regulator.reread()

    def stats(self) -> SqliteCaptureStats:
        order = self._order
        if order is None:
            return SqliteCaptureStats(0, 0, 0.0)
        return SqliteCaptureStats(order.changes_not_captured, order.late_rows, order.spent_ns / 1e9)

    def close(self) -> None:
        """Stop the regulator and let another process capture from the file."""
        self._regulator.close()
        if self._reader is not None:
            self._reader.close()
        if self._lock_handle >= 0:
            os.close(self._lock_handle)
            self._lock_handle = -1

    def _start(self, connection: sqlite3.Connection) -> HandOver:
        """The order of this database's commits; the first connection locks the file and starts the regulator."""
        name = next(row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main")
        if not name:
            raise self._unfit("it is in memory", "use a database file")
        if self._order is not None and Path(name) == self._file:
            return self._order
        if self._order is not None:
            raise self._unfit(f"this capture belongs to {self._file}, not to {name}", "make another capture")
        self._check_table(connection)
        self._lock_file(Path(name))
        highest = f"SELECT max({_quote(self._position)}) FROM {_quote(self._table)}"  # noqa: S608 - quoted names
        last = connection.execute(highest).fetchone()[0]
        self._file = Path(name)
        self._order = HandOver(self._regulator, self._columns.index(self._position), last)
        self._regulator.start(self._read_after, self._position)
        return self._order

    def _check_table(self, connection: sqlite3.Connection) -> None:
        found = connection.execute(
            "SELECT name, type, pk FROM pragma_table_info(?)", (self._table,)
        ).fetchall()
        if not found:
            raise self._unfit("there is no such table", "create it before the first captured connection")
        missing = sorted(set(self._columns) - {name for name, _, _ in found})
        if missing:
            raise self._unfit(f"it has no column {', '.join(missing)}", "correct the schema")
        keys = [(name, kind.upper()) for name, kind, pk in found if pk]
        # a key that is the rowid itself needs no index of its own
        own_index = connection.execute(
            "SELECT 1 FROM pragma_index_list(?) WHERE origin = 'pk'", (self._table,)
        ).fetchone()
        if keys != [(self._position, "INTEGER")] or own_index:
            raise self._unfit(
                f"{self._position!r} is not its INTEGER PRIMARY KEY",
                "name the INTEGER PRIMARY KEY as position",
            )

    def _lock_file(self, database: Path) -> None:
        path = database.with_name(database.name + ".tidemill.lock")
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(handle, 32, 0).decode().strip() or "unknown"
            os.close(handle)
            raise SourceError(
                f"{database} is captured already by pid {holder}",
                code="already_captured",
                next_move="capture in one process, or stop that one",
                holder=holder,
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._lock_handle = handle

    def _watch(self, connection: CapturingConnection, gathering: Gathering) -> None:
        table, names = _quote(self._table), ", ".join(f"NEW.{_quote(name)}" for name in self._columns)
        connection.create_function("tidemill_gather", len(self._columns), gathering.add)
        connection.create_function("tidemill_change", 0, gathering.count_change)
        for event, call in (
            ("INSERT", f"tidemill_gather({names})"),
            ("UPDATE", "tidemill_change()"),
            ("DELETE", "tidemill_change()"),
        ):
            connection.execute(
                f"CREATE TEMP TRIGGER tidemill_{event.lower()} AFTER {event} ON main.{table} BEGIN SELECT {call}; END"
            )
        connection.commit()
        connection.gathering = gathering

    def _read_after(self, position: int | None, most_rows: int) -> Sequence[Row]:
        """Committed rows above a position; runs in the regulator's thread with a connection of its own."""
        columns, key = ", ".join(map(_quote, self._columns)), _quote(self._position)
        sql = f"SELECT {columns}, NULL FROM {_quote(self._table)} WHERE {key} > ? ORDER BY {key} LIMIT ?"  # noqa: S608 - quoted names
        try:
            if self._reader is None:
                assert self._file is not None
                self._reader = sqlite3.connect(
                    self._file, timeout=_READ_WAIT_SECONDS, check_same_thread=False
                )
                # text that is not UTF-8 then fails in its own row, not in the whole read
                self._reader.text_factory = lambda text: text.decode(errors="surrogateescape")
            return self._reader.execute(
                sql, (-(2**63) if position is None else position, most_rows)
            ).fetchall()
        except sqlite3.Error as error:
            raise SourceError(
                f"cannot read {self._table} of {self._file}: {error}",
                code="source_unreadable",
                next_move="check the database file",
                retryable=getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY,
            ) from error

    def _unfit(self, why: str, next_move: str) -> SourceError:
        return SourceError(
            f"cannot capture table {self._table!r}: {why}",
            code="not_capturable",
            next_move=next_move,
            table=self._table,
        )


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


__all__ = ["COMMITTED_AT", "SqliteCapture", "SqliteCaptureStats"]
