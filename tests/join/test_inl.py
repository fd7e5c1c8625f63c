"""Index nested loops beyond the laws: what a row costs."""

from pathlib import Path

import pytest
from tests.join.streams import ROWS, batch, build, join_on, totals

from tidemill.join.drive import drive
from tidemill.join.inl import InlJoin
from tidemill.master import MasterData


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    return build(tmp_path_factory.mktemp("m"))


def test_every_row_costs_one_page_even_when_rows_are_equal(master: MasterData):
    counts = totals(drive(join_on("inl", master), [batch([7] * 100), batch(range(100))]))
    assert (counts["disk_matches"], counts["pages_read"]) == (200, 200)


def test_keys_outside_every_page_cost_no_read(master: MasterData):
    counts = totals(drive(join_on("inl", master, how="left"), [batch([-5, ROWS, 2**62])]))
    assert (counts["unmatched"], counts["emitted_rows"], counts["pages_read"]) == (3, 3, 0)


def test_more_memory_than_its_buffers_is_left_alone(master: MasterData):
    join = join_on("inl", master, 10**9)
    assert isinstance(join, InlJoin)
    assert join.budget.held_bytes < 8_000_000


def test_a_key_with_many_pages_is_read_over_several_steps(tmp_path: Path):
    master = build(tmp_path, [1, *[2] * 3000, 3])
    assert master.pages > 4
    join = join_on("inl", master, 150_000)
    assert isinstance(join, InlJoin)
    reports = list(drive(join, [batch([2, 3, 2])]))
    assert totals(reports)["output_rows"] == 6001
    assert max(report.pages_read for report in reports) <= join.sizes.pages_per_step
