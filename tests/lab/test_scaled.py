"""Runs at a fraction of a paper's sizes: the same rates at any scale, within the memory given."""

from pathlib import Path

import pytest

from tidemill.lab.compared import compared
from tidemill.lab.data.zipf import ZipfData
from tidemill.lab.scaled import ScaledRuns, most_waiting_rows
from tidemill.model.work import COSTS_OF_2008


def test_a_smaller_part_takes_a_smaller_time(tmp_path: Path) -> None:
    runs = ScaledRuns(read_bytes=930_000, disk_scale=40, folder=tmp_path)
    whole = COSTS_OF_2008.read.seconds(930_000)
    assert runs.costs.read.seconds(930_000 / 40) == pytest.approx(whole / 40)
    assert runs.costs.add_seconds == COSTS_OF_2008.add_seconds


# Parts that begin at any page overlap less the fewer pages they have: three here, against six.
@pytest.mark.parametrize(("algorithm", "within"), [("hybrid", 0.25), ("mesh", 0.1)])
def test_rates_do_not_depend_on_the_scale(tmp_path: Path, algorithm: str, within: float) -> None:
    rates = []
    for scale in (40, 80):
        runs = ScaledRuns(read_bytes=930_000, disk_scale=scale, folder=tmp_path)
        data = ZipfData(master_rows=1_000_000 // scale, exponent=0.0, page_bytes=4096)
        rates.append(runs.rows_per_s(runs.run(algorithm, data, 50_000_000 // scale)))
    assert rates[0] == pytest.approx(rates[1], rel=within)


@pytest.mark.parametrize("algorithm", ["hybrid", "x_hybrid", "mesh", "reduced_mesh", "moij", "cache"])
def test_a_round_reads_what_the_paper_reads_within_the_budget(tmp_path: Path, algorithm: str) -> None:
    runs = ScaledRuns(read_bytes=80 * 1024, disk_scale=10, folder=tmp_path)
    data = ZipfData(master_rows=20_000, exponent=1.0, page_bytes=8192)
    run = runs.run(algorithm, data, 400_000)
    assert run.sizes.total_bytes <= 400_000
    assert sum(run.state.memory_bytes.values()) <= 400_000
    bytes_per_read = run.state.work_per_row.read_bytes / run.state.work_per_row.reads
    assert bytes_per_read == pytest.approx(8192, rel=0.15), "neighbouring parts may be read at once"


def test_the_mesh_family_can_be_held_to_fewer_waiting_rows(tmp_path: Path) -> None:
    runs = ScaledRuns(read_bytes=930_000, disk_scale=40, folder=tmp_path)
    data = ZipfData(master_rows=20_000, exponent=1.0, page_bytes=4096, order="popularity")
    limit = most_waiting_rows(runs.run("hybrid", data, 1_000_000))
    usual = runs.run("mesh", data, 1_000_000)
    held = runs.run("mesh", data, 1_000_000, waiting_rows=limit)
    assert held.sizes.window_rows <= limit < usual.sizes.window_rows
    assert runs.rows_per_s(held) < runs.rows_per_s(usual)


def test_costs_are_close_only_if_each_join_is() -> None:
    good = [("mesh", 1.0, 100.0, 95.0), ("mesh", 2.0, 100.0, 109.0)]
    assert compared(good, x_label="x").holds
    found = compared([*good, ("hybrid", 1.0, 100.0, 85.0)], x_label="x")
    assert not found.holds
    assert "hybrid by 15%" in found.reason
    assert "mesh" not in found.reason
    assert [curve.kind for curve in found.figures[0].curves] == ["measured", "predicted"] * 2
