"""Every row has one fate, and the right rows are kept."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import BudgetError, SpecError
from tidemill.core.memory import MemoryBudget
from tidemill.join.shedding.catalog import STRATEGIES, make_strategy, strategy_for
from tidemill.join.shedding.shedding import RESERVATION, Round, Shedding
from tidemill.join.shedding.strategy import Floats, UInt64s


def shedder(name: str, memory_bytes: int = 1_000_000, seed: int = 0) -> Shedding:
    return Shedding(make_strategy(name), MemoryBudget(memory_bytes), memory_bytes=memory_bytes, seed=seed)


def rows(numbers: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], names=["row"])


def numbers(batches: Sequence[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch.column("row").to_pylist()]


def run(
    name: str, room: int, matches: Floats, draws: UInt64s, order: Sequence[int], cuts: Sequence[int]
) -> tuple[list[int], list[int], Round]:
    """Kept and shed rows of one round, whose rows arrive in this order, cut into batches."""
    shedding = shedder(name)
    shedding.open(room)
    shed: list[pa.RecordBatch] = []
    for part in np.split(np.array(order, np.int64), sorted(cuts)):
        shed += shedding.arrive(rows(part.tolist()), matches=matches[part], draws=draws[part])
    done = shedding.hand_over()
    return numbers(done.kept), numbers([*shed, *done.shed]), done


@st.composite
def rounds(draw: st.DrawFn) -> tuple[int, Floats, UInt64s, list[int], list[int]]:
    count = draw(st.integers(0, 60))
    matches = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    order = draw(st.permutations(range(count)))
    cuts = draw(st.lists(st.integers(0, count), max_size=8))
    room = draw(st.integers(0, 70))
    draws = random.integers(0, 2**64, count, np.uint64)
    return room, np.array(matches, np.float64), draws, list(order), cuts


@pytest.mark.parametrize("name", sorted(STRATEGIES))
@settings(max_examples=60, deadline=None)
@given(case=rounds())
def test_each_row_has_one_fate_and_the_room_is_used(
    name: str, case: tuple[int, Floats, UInt64s, list[int], list[int]]
) -> None:
    room, matches, draws, order, cuts = case
    kept, shed, done = run(name, room, matches, draws, order, cuts)
    assert sorted(kept + shed) == list(range(len(matches)))
    assert len(kept) == min(room, len(matches))
    report = done.report
    assert (report.arrived_rows, report.kept_rows, report.shed_rows) == (len(matches), len(kept), len(shed))
    assert report.arrived_matches == matches.sum()
    assert report.kept_matches == matches[kept].sum()
    assert (report.stated_error == 0) == (not shed or (name == "top" and matches[shed].sum() == 0))
    assert np.concatenate([np.empty(0), *done.matches]).tolist() == matches[kept].tolist()


@pytest.mark.parametrize("name", ["cluster", "sample", "top"])
@settings(max_examples=60, deadline=None)
@given(case=rounds())
def test_what_is_kept_hangs_on_the_rows_alone(
    name: str, case: tuple[int, Floats, UInt64s, list[int], list[int]]
) -> None:
    room, matches, draws, order, cuts = case
    kept, _, _ = run(name, room, matches, draws, order, cuts)
    again, _, _ = run(name, room, matches, draws, range(len(matches)), [])
    assert sorted(kept) == sorted(again)


@settings(max_examples=60, deadline=None)
@given(case=rounds())
def test_top_keeps_the_rows_with_most_matches(
    case: tuple[int, Floats, UInt64s, list[int], list[int]],
) -> None:
    room, matches, draws, order, cuts = case
    kept, _, _ = run("top", room, matches, draws, order, cuts)
    assert sorted(matches[kept].tolist()) == sorted(matches.tolist())[max(0, len(matches) - room) :]


def test_keep_takes_the_first_rows() -> None:
    shedding = shedder("keep")
    shedding.open(3)
    at_once = shedding.arrive(rows([0, 1])) + shedding.arrive(rows([2, 3])) + shedding.arrive(rows([4]))
    done = shedding.hand_over()
    assert (numbers(done.kept), sorted(numbers([*at_once, *done.shed]))) == ([0, 1, 2], [3, 4])
    assert done.shares is None
    assert done.report.stated_error == pytest.approx(0.4)


@pytest.mark.parametrize("name", ["sample", "cluster"])
def test_chances_are_as_stated(name: str) -> None:
    """Over 4,000 rounds each row is kept as often as its matches ask, and 1 / share adds up to 1 on average."""
    matches = np.array([1.0, 1, 2, 4, 8])
    shedding = shedder(name, seed=3)
    kept, weight = np.zeros(5), np.zeros(5)
    for _ in range(4000):
        shedding.open(2)
        shedding.arrive(rows(range(5)), matches=matches)
        done = shedding.hand_over()
        assert done.shares is not None
        places = numbers(done.kept)
        kept[places] += 1
        weight[places] += 1 / np.concatenate(done.shares)
    assert weight / 4000 == pytest.approx(np.ones(5), abs=0.15)
    if name == "sample":
        assert kept / 4000 == pytest.approx(np.full(5, 0.4), abs=0.03)
    else:
        assert (np.diff(kept)[1:] > 0).all()


def test_memory_is_set_aside_and_rows_beyond_it_are_refused() -> None:
    budget = MemoryBudget(50_000)
    shedding = Shedding(make_strategy("sample"), budget, memory_bytes=20_000)
    assert budget.holdings() == {RESERVATION: 20_000}
    shedding.open(1_000)
    shedding.arrive(rows(range(50)))
    with pytest.raises(BudgetError, match="asked for"):
        shedding.arrive(rows(range(500)))
    assert numbers(shedding.hand_over().kept) == list(range(50))
    assert budget.holdings() == {RESERVATION: 20_000}


def test_a_small_room_needs_little_memory_for_many_rows() -> None:
    shedding = shedder("sample", 300_000)
    shedding.open(500)
    for first in range(0, 100_000, 1000):
        shedding.arrive(rows(range(first, first + 1000)))
    assert shedding.hand_over().report.shed_rows == 99_500


def test_strategies_by_goal_and_join() -> None:
    chosen = [strategy_for(goal, many_to_many=many) for many in (False, True) for goal in ("most", "sample")]
    assert chosen == ["keep", "sample", "top", "cluster"]
    with pytest.raises(SpecError, match="did you mean 'sample'"):
        make_strategy("sampl")
    with pytest.raises(SpecError, match="valid: most, sample"):
        strategy_for("least", many_to_many=True)  # type: ignore[arg-type]


def test_misuse_is_refused() -> None:
    shedding = shedder("top")
    shedding.open(1)
    with pytest.raises(SpecError, match="ranks rows by their matches"):
        shedding.arrive(rows([1]))
    shedding.arrive(rows([1]), matches=np.ones(1))
    with pytest.raises(SpecError, match="1 rows have arrived"):
        shedding.open(2)
