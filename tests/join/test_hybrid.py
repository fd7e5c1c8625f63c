"""HYBRIDJOIN beyond the laws: whole partitions, shared by all rows that wait for them."""

import pytest
from tests.join.streams import ROWS, batch, build, join_on, totals

from tidemill.core.errors import BudgetError
from tidemill.join.drive import drive
from tidemill.join.hybrid import HybridJoin, HybridSizes
from tidemill.master import MasterData


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    return build(tmp_path_factory.mktemp("m"))


def hybrid(master: MasterData, memory_bytes: int) -> HybridJoin:
    join = join_on("hybrid", master, memory_bytes, how="left")
    assert isinstance(join, HybridJoin)
    return join


def test_one_partition_serves_all_rows_that_wait_for_it(master: MasterData):
    join = hybrid(master, 2_000_000)
    pages = join.sizes.pages_per_step
    keys = list(range(sum(master.read_page(page).num_rows for page in range(pages))))
    counts = totals(drive(join, [batch(keys)]))
    assert (counts["disk_matches"], counts["pages_read"]) == (len(keys), pages)


def test_the_oldest_row_chooses(master: MasterData):
    join = hybrid(master, 300_000)
    last_first = [ROWS - 1, *range(200)]
    join.offer(batch(last_first))
    join.step()
    first_served = next(report for report in join.drain() if report.disk_matches)
    assert first_served.outputs[0].column("key").to_pylist() == [ROWS - 1]


def test_a_row_that_matches_nothing_finishes_with_its_partition(tmp_path_factory: pytest.TempPathFactory):
    even = build(tmp_path_factory.mktemp("even"), range(0, ROWS, 2))
    counts = totals(drive(hybrid(even, 300_000), [batch([1, 3, 5, 7, 2])]))
    assert (counts["unmatched"], counts["disk_matches"]) == (4, 1)
    assert counts["pages_read"] <= hybrid(even, 300_000).sizes.pages_per_step


def test_parts_nobody_asks_for_are_never_read(master: MasterData):
    join = hybrid(master, 300_000)
    counts = totals(drive(join, [batch(range(100))] * 50))
    assert counts["pages_read"] <= 60 * join.sizes.pages_per_step
    assert counts["emitted_rows"] == 5000


@pytest.mark.parametrize("total_bytes", [60_000, 1_000_000, 4_000_000_000])
def test_sizes_use_the_budget_and_never_more(total_bytes: int):
    assert HybridSizes.from_budget(total_bytes, 20, 110, 5000).total_bytes == total_bytes


def test_a_budget_too_small_names_the_least_that_works(master: MasterData):
    with pytest.raises(BudgetError) as refusal:
        hybrid(master, 5000)
    least = refusal.value.least_bytes
    assert totals(drive(hybrid(master, least), [batch(range(50))]))["disk_matches"] == 50
    with pytest.raises(BudgetError):
        hybrid(master, least - 1)


def test_sizes_that_cannot_work_are_refused(master: MasterData):
    sizes = hybrid(master, 300_000).sizes
    with pytest.raises(BudgetError, match="pending at least twice"):
        HybridSizes(**{**vars(sizes), "pending_bytes": sizes.arrivals_bytes})
