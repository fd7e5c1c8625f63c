"""X-HYBRIDJOIN beyond the laws: pages that stay, and what they save."""

import pytest
from tests.join.streams import ROWS, batch, build, join_on, skewed, totals

from tidemill.core.errors import BudgetError
from tidemill.join.drive import drive
from tidemill.join.x_hybrid import XHybridJoin
from tidemill.master import MasterData


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    return build(tmp_path_factory.mktemp("m"))


def x_hybrid(master: MasterData, memory_bytes: int = 500_000) -> XHybridJoin:
    join = join_on("x_hybrid", master, memory_bytes, how="left")
    assert isinstance(join, XHybridJoin)
    return join


def test_rows_of_the_first_pages_are_read_once(master: MasterData):
    join = x_hybrid(master)
    keys = list(range(master.read_page(0).num_rows))
    counts = totals(drive(join, [batch(keys)] * 5))
    assert counts["hot_hits"] == 5 * len(keys)
    assert counts["pages_read"] == join.sizes.pages_per_step


def test_no_page_is_read_for_rows_that_never_wait(master: MasterData):
    join = x_hybrid(master)
    join.step()
    assert totals(drive(join, [batch([-1, ROWS])]))["pages_read"] == 0


def test_resident_pages_save_reads_when_the_first_keys_are_the_popular_ones(master: MasterData):
    memory = 600_000
    popular_first = skewed(10, spread=False)
    extended = totals(drive(x_hybrid(master, memory), popular_first))
    plain = totals(drive(join_on("hybrid", master, memory, how="left"), popular_first))
    spread = totals(drive(x_hybrid(master, memory), skewed(10, spread=True)))
    assert extended["emitted_rows"] == plain["emitted_rows"] == 20_000
    assert extended["pages_read"] < plain["pages_read"]
    assert extended["hot_hits"] > 2 * spread["hot_hits"]


def test_both_halves_of_the_disk_buffer_are_equal(master: MasterData):
    sizes = x_hybrid(master).sizes
    assert sizes.resident_bytes == sizes.disk_buffer_bytes
    assert sizes.total_bytes == 500_000


def test_a_budget_too_small_names_the_least_that_works(master: MasterData):
    with pytest.raises(BudgetError) as refusal:
        x_hybrid(master, 5000)
    least = refusal.value.least_bytes
    assert totals(drive(x_hybrid(master, least), [batch(range(50))]))["emitted_rows"] == 50
