"""Rows that wait to be looked at stay within their bytes, and some can always be taken."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import BudgetError
from tidemill.join.parts.arrivals import MET_WORK_BYTES, WORK_BYTES_PER_ROW, Arrivals


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": pa.array(range(count), pa.int64())})


@settings(max_examples=200, deadline=None)
@given(
    limit_bytes=st.integers(2 * (8 + WORK_BYTES_PER_ROW), 20_000),
    in_pieces=st.booleans(),
    work=st.lists(st.sampled_from(["come", "take", "take what is met", "let go"]), max_size=60),
)
def test_those_queued_and_those_at_work_stay_within_their_bytes(
    limit_bytes: int, in_pieces: bool, work: list[str]
) -> None:
    arrivals = Arrivals(limit_bytes, 8, equal_rows=True, in_pieces=in_pieces)
    at_work = 0
    for what in work:
        if what == "come" and arrivals.room():
            arrivals.add(rows(arrivals.room()))
        elif what.startswith("take") and arrivals.rows:
            arrivals.work_bytes = WORK_BYTES_PER_ROW if what == "take" else MET_WORK_BYTES
            most = min(arrivals.piece_rows, arrivals.next_rows)
            fitting = arrivals.fitting(most)
            assert fitting <= most
            assert fitting or at_work, "one at least when none is at work"
            if fitting:
                arrivals.pass_by(fitting, beside_others=in_pieces)
                at_work += 1
        elif what == "let go" and at_work:
            arrivals.let_go()
            at_work -= 1
        assert arrivals.bytes_held <= limit_bytes
    if not arrivals.bytes_held:
        assert arrivals.room()


def test_three_pieces_are_at_work_while_others_come():
    arrivals = Arrivals(100_000, 8, equal_rows=True, in_pieces=True)
    piece = arrivals.piece_rows
    for _ in range(3):
        arrivals.add(rows(arrivals.room()))
        arrivals.pass_by(arrivals.fitting(piece), beside_others=True)
    assert arrivals.fitting(piece) < piece
    assert arrivals.rows + arrivals.room() > piece
    whole = Arrivals(100_000, 8, equal_rows=True)
    assert piece > 1.3 * whole.most_rows / 6, "longer pieces than with work space for all that came"


def test_a_wide_row_has_all_of_it():
    arrivals = Arrivals(1000, 8, in_pieces=True)
    assert arrivals.room(row_bytes=900) == 1
    assert arrivals.room(row_bytes=950) == 0
    with pytest.raises(BudgetError):
        arrivals.add(rows(1000))
