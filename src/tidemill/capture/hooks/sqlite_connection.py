"""An SQLite connection that knows which inserted rows were committed."""

import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from types import TracebackType
from typing import Any, Literal

from tidemill.capture.hooks.hand_over import HandOver, Transaction

_FIRST_WORDS = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*(\w+)", re.DOTALL)
_ROLLBACK_TO = re.compile(r"ROLLBACK(?:\s+TRANSACTION)?\s+TO\b", re.IGNORECASE)
_OR_REPLACE = re.compile(r"\bOR\s+REPLACE\b", re.IGNORECASE)
Kind = Literal["rollback", "rollback_to", "replace", "other"]


@lru_cache(maxsize=512)
def kind_of(sql: str) -> Kind:
    r"""What a statement means for rows gathered so far.

    >>> kind_of("-- undo\nrollback to here"), kind_of("INSERT INTO t VALUES (1)")
    ('rollback_to', 'other')
    """
    match = _FIRST_WORDS.match(sql)
    word = match[1].upper() if match else ""
    if match and word == "ROLLBACK":
        return "rollback_to" if _ROLLBACK_TO.match(sql, match.start(1)) else "rollback"
    return "replace" if word == "REPLACE" or _OR_REPLACE.search(sql) else "other"


class Gathering:
    """Rows of the transaction that one connection has open; filled by a trigger."""

    def __init__(self, order: HandOver | None = None) -> None:
        self._order = order
        self.transaction: Transaction | None = None

    def add(self, *row: Any) -> None:
        """Called by SQLite for each inserted row, so it does no more than this."""
        begin_ns = time.perf_counter_ns()
        order, transaction = self._order, self.transaction
        assert order is not None
        if transaction is None:
            transaction = self.transaction = order.begin()
        transaction.rows.append(row)
        order.spent_ns += time.perf_counter_ns() - begin_ns

    def count_change(self) -> None:
        assert self._order is not None
        self._order.count_change()

    def doubt(self) -> None:
        """Certainty is lost: at its end the table is read by position instead."""
        if self.transaction is not None:
            self.transaction.certain = False

    def end(self, *, committed: bool) -> None:
        transaction, self.transaction = self.transaction, None
        if transaction is not None and self._order is not None:
            self._order.end(transaction, committed=committed)

    def end_in_doubt(self) -> None:
        self.doubt()
        self.end(committed=True)

    def abandon(self) -> None:
        """The connection is gone. Takes no lock: a collection may strike while this thread holds one."""
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            transaction.ended = True

    def pause(self) -> None:
        """Hand over what a script may have committed, and stay in doubt about the transaction it left open."""
        self.end_in_doubt()
        if self._order is not None:
            self.transaction = self._order.begin()
            self.transaction.certain = False


class CapturingCursor(sqlite3.Cursor):
    """A cursor that tells its connection how each statement ended."""

    _returned: Iterator[Any] | None = None

    def execute(self, sql: str, parameters: Any = (), /) -> "CapturingCursor":
        connection = self._prepare()
        try:
            super().execute(sql, parameters)
        except BaseException:
            connection.after_error()
            raise
        if connection.gathering.transaction is not None:
            self._finish_returning(connection)
            connection.after_statement(kind_of(sql))
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> "CapturingCursor":
        connection = self._prepare()
        try:
            super().executemany(sql, parameters)
        except BaseException:
            connection.after_error()
            raise
        if not connection.in_transaction:  # each row was a transaction of its own, others may lie between
            connection.gathering.end_in_doubt()
        elif connection.gathering.transaction is not None:
            connection.after_statement(kind_of(sql))
        return self

    def executescript(self, sql_script: str, /) -> "CapturingCursor":
        connection = self._prepare()
        try:
            super().executescript(sql_script)
        except BaseException:
            connection.after_script()
            raise
        connection.after_script()
        return self

    def _prepare(self) -> "CapturingConnection":
        self._returned = None
        connection = self.connection
        assert isinstance(connection, CapturingConnection)
        connection.end_leftover()
        return connection

    def _finish_returning(self, connection: "CapturingConnection") -> None:
        """INSERT ... RETURNING outside a transaction commits when its last row is fetched: do that now."""
        if self.description is not None and not connection.in_transaction:
            self._returned = iter(super().fetchall())

    def fetchone(self) -> Any:
        return super().fetchone() if self._returned is None else next(self._returned, None)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        size = self.arraysize if size is None else size
        if self._returned is None:
            return super().fetchmany(size)
        return list(islice(self._returned, size))

    def fetchall(self) -> list[Any]:
        return super().fetchall() if self._returned is None else list(self._returned)

    def __next__(self) -> Any:
        return super().__next__() if self._returned is None else next(self._returned)


class CapturingConnection(sqlite3.Connection):
    """A connection like any other; rows are handed over after the commit that made them durable."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.gathering = Gathering()
        super().__init__(*arguments, **named)

    def cursor(self, factory: Callable[[sqlite3.Connection], Any] | None = None) -> Any:
        if isinstance(factory, type) and not issubclass(factory, CapturingCursor):
            factory = type(f"Capturing{factory.__name__}", (CapturingCursor, factory), {})
        return super().cursor(factory or CapturingCursor)

    def execute(self, sql: str, parameters: Any = (), /) -> Any:  # these three make a plain cursor in C else
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any:
        return self.cursor().executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> Any:
        return self.cursor().executescript(sql_script)

    def commit(self) -> None:
        self.end_leftover()
        try:
            super().commit()
        except BaseException:
            self.after_error()
            raise
        self._after_end(committed=True)

    def rollback(self) -> None:
        self.end_leftover()
        super().rollback()
        self._after_end(committed=False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> Literal[False]:
        self.end_leftover()
        try:
            super().__exit__(kind, error, trace)
        except BaseException:
            self.after_error()
            raise
        self._after_end(committed=kind is None)
        return False

    def close(self) -> None:
        self.end_leftover()
        super().close()
        self.gathering.end(committed=False)

    def __del__(self) -> None:
        self.gathering.abandon()

    def after_statement(self, kind: Kind) -> None:
        if kind == "rollback_to":
            self.gathering.doubt()
        elif kind == "replace" and self.gathering.transaction is not None:
            self.gathering.transaction.replaces = True
            self.gathering.doubt()
        if not self.in_transaction:
            self.gathering.end(committed=kind != "rollback")

    def after_error(self) -> None:
        """A failed statement may have left some of its rows (OR FAIL) or none, or ended the transaction."""
        self.gathering.doubt()
        if not self.in_transaction:
            self.gathering.end_in_doubt()

    def after_script(self) -> None:
        if self.gathering.transaction is not None:
            if self.in_transaction:
                self.gathering.pause()
            else:
                self.gathering.end_in_doubt()

    def end_leftover(self) -> None:
        """A transaction that ended unseen, such as by setting `isolation_level`."""
        if self.gathering.transaction is not None and not self.in_transaction:
            self.gathering.end_in_doubt()

    def _after_end(self, *, committed: bool) -> None:
        # with autocommit=True (Python 3.12) commit, rollback and `with` do nothing
        if getattr(self, "autocommit", None) is not True:
            self.gathering.end(committed=committed)


__all__ = ["CapturingConnection", "CapturingCursor", "Gathering", "kind_of"]
