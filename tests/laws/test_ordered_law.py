"""Ordered output is ordered, and still that of the nested loop, for every join in the catalog."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from tests.laws.test_join_laws import CUT_ROW, FITTING, STREAM, Case, cases, rows_of, run

from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.protocol import SemiStreamJoin
from tidemill.master import MasterData


def ordered_join(
    case: Case, name: str, masters: dict[str, MasterData], hold_bytes: int
) -> tuple[SemiStreamJoin, MemoryBudget]:
    """Sizes for the join of the case, and for the hold so much besides."""
    options: dict[str, Any] = {"matched_as": "matched"} if case.how == "left" else {}
    inner, inner_budget = case.join(name, masters)
    budget = MemoryBudget(2 * inner_budget.total_bytes)
    if hasattr(inner, "sizes"):
        options["sizes"] = inner.sizes
        budget = MemoryBudget(inner_budget.held_bytes + hold_bytes)
    master = masters[case.shape]
    join = make_join(
        name, master, STREAM, stream_key="key", how=case.how, budget=budget, ordered=True, **options
    )
    return join, budget


@FITTING
@example(case=CUT_ROW, hold_bytes=5000, every=1)
@given(case=cases(), hold_bytes=st.sampled_from([5000, 20_000, 1_000_000]), every=st.integers(1, 5))
def test_ordered_output_is_ordered(
    name: str, masters: dict[str, MasterData], case: Case, hold_bytes: int, every: int
) -> None:
    expected = rows_of(list(run(case.join("reference", masters)[0], case.batches())))
    join, budget = ordered_join(case, name, masters, hold_bytes)
    reports, seen, rows_in, finished = [], [], 0, 0
    for step, report in enumerate(run(join, case.batches())):
        reports.append(report)
        seen += [row for out in report.outputs for row in out.column("row").to_pylist()]
        rows_in += report.rows_in
        finished += report.emitted_rows + report.dropped_rows
        assert rows_in == finished + join.pending_rows
        assert all(held <= budget.holdings()[part] for part, held in report.held_bytes.items())
        if step % every == 0:
            join.restore(join.snapshot())
    assert seen == sorted(seen)
    assert rows_of(reports) == expected
    assert rows_in == finished == len(case.keys)
