"""Committed rows reach the regulator in commit order, whichever thread committed them."""

import logging
import os
import threading
import time
from collections import deque

from tidemill.capture.regulator import SourceRegulator
from tidemill.capture.rows import Row

_log = logging.getLogger(__name__)
FAIL_AFTER_COMMIT = (
    "TIDEMILL_FAIL_AFTER_COMMIT"  # fault tests: die after so many commits, before the hand-over
)


class Transaction:
    """Rows that one transaction inserted; `certain` while they are surely what its commit would leave."""

    __slots__ = ("certain", "committed", "ended", "replaces", "rows")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.certain = True
        self.replaces = False
        self.committed = False
        self.ended = False


class HandOver:
    """A queue of transactions in the order of their first insert.

    The first insert needs the database's only write lock, so this is the order of commits too. A thread that
    is between its commit and its hand-over holds back the later ones, and nobody waits: the last to
    come hands over all.
    """

    def __init__(self, regulator: SourceRegulator, position_index: int, last_position: int | None) -> None:
        self._regulator = regulator
        self._position_index = position_index
        self._last_position = -(2**63) if last_position is None else last_position
        self._lock = threading.Lock()
        self._transactions: deque[Transaction] = deque()
        self._commits_to_failure = int(os.environ.get(FAIL_AFTER_COMMIT, "0"))
        self.late_rows = self.changes_not_captured = self.spent_ns = 0

    def begin(self) -> Transaction:
        """A transaction's place in the order; call it at its first insert."""
        transaction = Transaction()
        with self._lock:
            self._transactions.append(transaction)
        return transaction

    def end(self, transaction: Transaction, *, committed: bool) -> None:
        begin_ns = time.perf_counter_ns()
        if committed:
            self._maybe_fail()
            committed_at_us = time.time_ns() // 1000
            transaction.rows = [(*row, committed_at_us) for row in transaction.rows]
        transaction.committed = committed
        transaction.ended = True
        with self._lock:
            while self._transactions and self._transactions[0].ended:
                self._hand_over(self._transactions.popleft())
        self.spent_ns += time.perf_counter_ns() - begin_ns

    def count_change(self) -> None:
        """Note an UPDATE or DELETE of a row."""
        if self.changes_not_captured == 0:
            _log.warning("UPDATE and DELETE on the captured table are counted, but not captured yet")
        self.changes_not_captured += 1

    def _hand_over(self, transaction: Transaction) -> None:
        rows, at = transaction.rows, self._position_index
        if not transaction.committed:
            return
        if not transaction.certain:
            if transaction.replaces:
                for _ in range(sum(row[at] <= self._last_position for row in rows)):
                    self.count_change()
            self._regulator.reread()
            return
        fresh: list[Row] = []
        late: list[Row] = []
        last = self._last_position
        for row in rows:
            if row[at] > last:
                last = row[at]
                fresh.append(row)
            else:
                late.append(row)
        self._last_position = last
        if fresh:
            self._regulator.submit(fresh)
        if late:
            self._take_late(late)

    def _take_late(self, rows: list[Row]) -> None:
        if self.late_rows == 0:
            _log.warning(
                "a row was inserted at position %d, below %d: such rows are sent, but would not be found again "
                "after a crash; let the database assign growing ids (AUTOINCREMENT)",
                rows[0][self._position_index],
                self._last_position,
            )
        self.late_rows += len(rows)
        self._regulator.submit(rows, late=True)

    def _maybe_fail(self) -> None:
        if self._commits_to_failure:
            self._commits_to_failure -= 1
            if self._commits_to_failure == 0:
                os._exit(137)


__all__ = ["FAIL_AFTER_COMMIT", "HandOver", "Transaction"]
