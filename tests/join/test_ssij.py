"""SSIJ beyond the laws: phases, cached pages, the time-out of the pending phase."""

from pathlib import Path

import pytest
from tests.join.streams import batch, build, join_on, skewed, totals

from tidemill.core.errors import BudgetError
from tidemill.join.drive import drive
from tidemill.join.ssij import SsijJoin
from tidemill.lab.predicted import workload_of
from tidemill.lab.virtual import run_virtual
from tidemill.master import MasterData


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    return build(tmp_path_factory.mktemp("m"))


def ssij(master: MasterData, memory_bytes: int = 1_000_000) -> SsijJoin:
    join = join_on("ssij", master, memory_bytes, how="left")
    assert isinstance(join, SsijJoin)
    return join


def test_popular_pages_are_cached(master: MasterData):
    join = ssij(master)
    cold = totals(drive(join, skewed(1, rows=500, spread=False)))
    list(drive(join, skewed(20, spread=False)))
    warm = totals(drive(join, skewed(4, spread=False)))
    assert cold["hot_hits"] / cold["rows_in"] < 0.5
    assert warm["hot_hits"] / warm["rows_in"] > 0.6
    assert warm["emitted_rows"] == 8000


def test_a_cached_page_also_answers_rows_that_match_nothing(tmp_path_factory: pytest.TempPathFactory):
    even = build(tmp_path_factory.mktemp("even"), range(0, 4000, 2))
    join = ssij(even, 800_000)
    for _ in range(20):
        list(drive(join, [batch([2, 4, 6] * 200)]))
    counts = totals(drive(join, [batch([3, 5, 2])]))
    assert (counts["unmatched"], counts["hot_hits"], counts["pages_read"]) == (2, 1, 0)


def test_few_rows_gather_and_then_time_out(master: MasterData):
    join = ssij(master)
    join.offer(batch([1, 2, 3]))
    gathering = [join.step() for _ in range(join.sizes.gather_steps)]
    assert sum(report.emitted_rows + report.pages_read for report in gathering) == 0
    assert totals(join.drain())["emitted_rows"] == 3
    assert join.pending_rows == 0


def test_enough_rows_do_not_wait_for_the_time_out(master: MasterData):
    join = ssij(master)
    join.offer(batch(range(-2, join.room(16) - 2)))
    assert join.step().unmatched == 2


def test_a_budget_too_small_names_the_least_that_works(master: MasterData):
    with pytest.raises(BudgetError) as refusal:
        ssij(master, 5000)
    least = refusal.value.least_bytes
    assert totals(drive(ssij(master, least), [batch(range(50))]))["emitted_rows"] == 50


def test_popular_pages_are_found_where_one_page_at_a_time_has_room(tmp_path: Path):
    """Of the pages that are met first few are worth a place; 8 pages fit, and the best 8 have about a quarter of the stream."""
    workload = workload_of(1.0, 60_000)
    run = run_virtual("ssij", workload, memory_bytes=900_000, folder=tmp_path, stream_rows=20_000)
    assert run.sizes.candidate_bytes < 2 * run.sizes.bytes_of_a_candidate
    assert run.state.hit_share > 0.2
