"""What a join costs beside its parts, found again from runs of which it is known."""

import pytest

from tidemill.lab.calibrate_joins import Timed, fitted
from tidemill.model.prediction import SteadyState
from tidemill.model.work import COSTS_TODAY, Costs, Work


def timed(costs: Costs, *, steps: float, overlapped: bool = False) -> Timed:
    """A run that takes as long as these costs say."""
    work = Work(
        stream_rows=1,
        added=0.5,
        removed=0.5,
        output_rows=1,
        reads=steps,
        read_bytes=steps * 65_536,
        steps=steps,
    )
    state = SteadyState(
        work_per_row=work, hot_bytes=0, waiting_bytes=10_000, waiting_rows=100, hit_share=0.5, memory_bytes={},
        overlapped=overlapped,
    )  # fmt: skip
    return Timed(1 / state.rows_per_s(costs), state)


@pytest.mark.parametrize(("name", "overlapped"), [("mesh", False), ("tide", True)])
def test_the_costs_of_a_row_and_of_a_step_are_found_from_two_runs(name: str, overlapped: bool) -> None:
    runs = [timed(COSTS_TODAY, steps=steps, overlapped=overlapped) for steps in (0.01, 0.0001)]
    found = fitted(name, runs, COSTS_TODAY)
    assert found.stream_row_seconds == pytest.approx(COSTS_TODAY.stream_row_seconds, rel=1e-6)
    assert found.step_seconds == pytest.approx(COSTS_TODAY.step_seconds, rel=1e-6)


def test_neither_is_below_zero_where_runs_contradict_each_other() -> None:
    slow, fast = timed(COSTS_TODAY, steps=0.0001), timed(COSTS_TODAY, steps=0.01)
    found = fitted("mesh", [Timed(slow.row_seconds * 900, slow.state), fast], COSTS_TODAY)
    assert found.stream_row_seconds >= 0
    assert found.step_seconds >= 0
    assert found.stream_row_seconds + found.step_seconds > 0


def test_one_run_is_enough_for_a_step() -> None:
    run = timed(COSTS_TODAY, steps=0.01)
    found = fitted("mesh", [run], COSTS_TODAY)
    again = found.stream_row_seconds + 0.01 * found.step_seconds
    assert again == pytest.approx(COSTS_TODAY.stream_row_seconds + 0.01 * COSTS_TODAY.step_seconds)
