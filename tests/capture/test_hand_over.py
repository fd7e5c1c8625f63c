"""Transactions are handed over in the order of their first insert, whichever thread ends first."""

from typing import Any, cast

from tidemill.capture.hooks.hand_over import HandOver
from tidemill.capture.regulator import SourceRegulator


class Recorder:
    """Takes the regulator's place and keeps what was handed over."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def submit(self, rows: list[tuple[Any, ...]], *, late: bool = False) -> None:
        self.calls.append(("late" if late else "fresh", [row[0] for row in rows]))

    def reread(self) -> None:
        self.calls.append("reread")


def hand_over(last_position: int = 0) -> tuple[HandOver, list[Any]]:
    recorder = Recorder()
    return HandOver(cast("SourceRegulator", recorder), 0, last_position), recorder.calls


def test_a_later_transaction_waits_for_an_earlier_one() -> None:
    order, calls = hand_over()
    first, second, third = order.begin(), order.begin(), order.begin()
    first.rows, second.rows, third.rows = [(1,)], [(2,), (3,)], [(4,)]
    order.end(third, committed=True)
    order.end(second, committed=True)
    assert calls == []
    order.end(first, committed=True)
    assert calls == [("fresh", [1]), ("fresh", [2, 3]), ("fresh", [4])]


def test_a_rolled_back_transaction_holds_nobody_back() -> None:
    order, calls = hand_over()
    first, second = order.begin(), order.begin()
    first.rows, second.rows = [(1,)], [(1,)]
    order.end(second, committed=True)
    order.end(first, committed=False)
    assert calls == [("fresh", [1])]


def test_doubt_leads_to_a_read_even_without_rows() -> None:
    order, calls = hand_over()
    transaction = order.begin()
    transaction.certain = False
    order.end(transaction, committed=True)
    assert calls == ["reread"]


def test_rows_at_or_below_the_last_position_are_late() -> None:
    order, calls = hand_over(last_position=10)
    transaction = order.begin()
    transaction.rows = [(11,), (5,), (12,), (12,)]
    order.end(transaction, committed=True)
    assert calls == [("fresh", [11, 12]), ("late", [5, 12])]
    assert order.late_rows == 2
