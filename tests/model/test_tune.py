"""The tuner finds the best rate for a memory and the least memory for a rate, and says what it cannot do."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import BudgetError, SpecError
from tidemill.model.prediction import SteadyState
from tidemill.model.tune import best_rate, least_memory
from tidemill.model.work import COSTS_OF_2008, Work
from tidemill.model.workload import Workload

SALES = Workload(master_rows=1_000_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=1.0)
COSTS = COSTS_OF_2008
ROW_SECONDS = COSTS.stream_row_seconds + COSTS.output_row_seconds
LEAST_BYTES = 100_000


@dataclass(frozen=True)
class Toy:
    """A join that reads one buffer for as many rows as wait in what the buffer leaves: an optimum between both."""

    name: str = "toy"
    slower: float = 1.0

    def default_sizes(self, workload: Workload, memory_bytes: int) -> tuple[int, int]:
        if memory_bytes < LEAST_BYTES:
            raise BudgetError("too little", code="budget_too_small", least_bytes=LEAST_BYTES)
        return memory_bytes // 10, memory_bytes

    def size_grid(self, workload: Workload, memory_bytes: int) -> Iterator[tuple[int, int]]:
        for share in range(1, 10):
            yield memory_bytes * share // 10, memory_bytes

    def steady_state(self, workload: Workload, sizes: tuple[int, int]) -> SteadyState:
        buffer_bytes, memory_bytes = sizes
        waiting = (memory_bytes - buffer_bytes) / 100
        reads = self.slower / waiting * workload.master_bytes / buffer_bytes
        return SteadyState(
            work_per_row=Work(stream_rows=1, output_rows=1, reads=reads, read_bytes=reads * buffer_bytes),
            hot_bytes=0,
            waiting_bytes=0,
            waiting_rows=waiting,
            hit_share=0,
            memory_bytes={"disk_buffer": buffer_bytes, "pending": memory_bytes - buffer_bytes},
        )


def rate_of(buffer_bytes: int, memory_bytes: int) -> float:
    return Toy().steady_state(SALES, (buffer_bytes, memory_bytes)).rows_per_s(COSTS)


def test_the_best_rate_is_that_of_brute_force_over_the_sizes():
    memory_bytes = 2_000_000
    plan = best_rate(SALES, COSTS, memory_bytes, algorithms=[Toy()])
    rates = [rate_of(buffer, memory) for buffer, memory in Toy().size_grid(SALES, memory_bytes)]
    assert plan.rows_per_s == max(rates)
    assert plan.rows_per_s > 1.3 * rates[0]
    assert plan.memory_bytes == memory_bytes


def test_default_sizes_are_a_mode_without_any_tuner():
    plan = best_rate(SALES, COSTS, 2_000_000, algorithms=[Toy()], sizes="default")
    assert plan.sizes == (200_000, 2_000_000)
    needs = [
        least_memory(SALES, COSTS, 20_000, algorithms=[Toy()], sizes=mode).memory_bytes
        for mode in ("tuner", "default")
    ]
    assert needs[0] < 0.9 * needs[1]


def test_the_next_best_stand_behind_and_ratios_are_told():
    plan = best_rate(SALES, COSTS, 2_000_000, algorithms=[Toy("slow", 4), Toy("fast"), Toy("slower", 9)])
    assert [plan.algorithm, *(other.algorithm for other in plan.runners_up)] == ["fast", "slow", "slower"]
    assert "times slow, the next best" in plan.why
    assert "goes into read" in plan.why


@pytest.mark.parametrize(("slower", "chosen"), [(1.05, "tide"), (1.5, "toy")])
def test_a_tie_goes_to_tide(slower: float, chosen: str):
    models = [Toy(), Toy("tide", slower)]
    assert best_rate(SALES, COSTS, 2_000_000, algorithms=models).algorithm == chosen
    assert least_memory(SALES, COSTS, 20_000, algorithms=models).algorithm == chosen


@given(st.floats(1_000, 0.7 / ROW_SECONDS))
def test_the_least_memory_reaches_the_rate_and_a_little_less_does_not(wanted: float):
    plan = least_memory(SALES, COSTS, wanted, algorithms=[Toy()])
    assert plan.rows_per_s >= wanted
    less = int(plan.memory_bytes * 0.98)
    if less >= LEAST_BYTES:
        assert best_rate(SALES, COSTS, less, algorithms=[Toy()]).rows_per_s < wanted


def test_more_memory_is_never_taken_than_another_join_needs():
    plan = least_memory(SALES, COSTS, 20_000, algorithms=[Toy("greedy", 4), Toy("modest")])
    assert plan.algorithm == "modest"
    assert plan.runners_up[0].algorithm == "greedy"
    assert plan.runners_up[0].rows_per_s < 20_000 <= plan.rows_per_s


def test_too_little_memory_names_the_least_that_works():
    with pytest.raises(BudgetError, match="at least 100,000 bytes") as refusal:
        best_rate(SALES, COSTS, 10_000, algorithms=[Toy("a"), Toy("b")])
    assert refusal.value.least_bytes == LEAST_BYTES
    with pytest.raises(BudgetError, match="at least 100,000 bytes"):
        least_memory(SALES, COSTS, 1, algorithms=[Toy()], most_bytes=10_000)


def test_a_rate_that_no_memory_gives_is_refused_with_the_limit():
    limit = 1 / ROW_SECONDS
    with pytest.raises(SpecError, match="no memory gives") as refusal:
        least_memory(SALES, COSTS, limit, algorithms=[Toy()])
    assert refusal.value.code == "rate_out_of_reach"
    assert 0.7 * limit < refusal.value.most_rows_per_s < limit


def test_a_rate_beyond_the_memory_is_refused_with_the_nearest():
    with pytest.raises(BudgetError, match="toy reaches") as refusal:
        least_memory(SALES, COSTS, 0.5 / ROW_SECONDS, algorithms=[Toy()], most_bytes=1_000_000)
    nearest = best_rate(SALES, COSTS, 1_000_000, algorithms=[Toy()])
    assert refusal.value.most_rows_per_s == nearest.rows_per_s
    assert refusal.value.least_bytes == 1_000_000


def test_joins_may_have_costs_of_their_own():
    slow = replace(COSTS, output_row_seconds=1e-3)
    models = [Toy("first"), Toy("second")]
    for name, other in (("first", "second"), ("second", "first")):
        plan = best_rate(
            SALES, lambda one, name=name: COSTS if one == name else slow, 10**7, algorithms=models
        )
        assert (plan.algorithm, plan.runners_up[0].algorithm) == (name, other)
        assert "goes into read" in plan.why


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_must_be_one(rate: float):
    with pytest.raises(SpecError, match="more than zero"):
        least_memory(SALES, COSTS, rate, algorithms=[Toy()])


def test_unknown_joins_are_named_with_the_nearest():
    with pytest.raises(SpecError, match="did you mean 'mesh'"):
        best_rate(SALES, COSTS, 1_000_000, algorithms=["mech"])
