"""Virtual time: counts that arithmetic foretells, the same on every run, and within the budget's rules."""

from dataclasses import replace
from pathlib import Path

import pytest

from tidemill.core.errors import BudgetError
from tidemill.join.catalog import JOINS
from tidemill.lab.virtual import VirtualRun, run_virtual
from tidemill.model.work import COSTS_OF_2008
from tidemill.model.workload import Workload

SMALL = Workload(master_rows=20_000, master_row_bytes=119, stream_row_bytes=20, zipf_exponent=1.0)
MEMORY = 700_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("virtual")


def run(folder: Path, algorithm: str, workload: Workload = SMALL, **options: int) -> VirtualRun:
    return run_virtual(algorithm, workload, memory_bytes=MEMORY, folder=folder, **options)


@pytest.mark.parametrize("algorithm", sorted(JOINS.keys() - {"reference"}))
def test_every_join_is_counted(folder: Path, algorithm: str) -> None:
    found = run(folder, algorithm, stream_rows=12_000 if algorithm != "inl" else 2_000)
    work = found.state.work_per_row
    assert work.stream_rows == 1
    assert work.output_rows == pytest.approx(1, abs=0.06)
    assert 0 <= work.added <= 1.02
    assert work.read_bytes >= work.reads * 4096 > 0
    assert 0 < found.state.rows_per_s(COSTS_OF_2008) < 1e6


def test_the_mesh_join_reads_all_pages_for_each_window_of_rows(folder: Path) -> None:
    found = run(folder, "mesh")
    sizes, work = found.sizes, found.state.work_per_row
    steps = -(-found.workload.master_pages // sizes.master_pages_per_step)
    rows_a_cycle = steps * sizes.stream_rows_per_step
    assert work.reads == pytest.approx(steps / rows_a_cycle, rel=0.05)
    assert work.master_rows == pytest.approx(SMALL.master_rows / rows_a_cycle, rel=0.05)
    assert work.added == pytest.approx(1, abs=0.02)
    assert (work.hot_probes, work.hot_changes, found.state.hit_share) == (0, 0, 0)


def test_index_nested_loops_read_a_page_for_each_row(folder: Path) -> None:
    work = run(folder, "inl", replace(SMALL, zipf_exponent=0.0), stream_rows=3_000).state.work_per_row
    assert work.read_bytes == pytest.approx(16_384, rel=0.02)
    assert 0.9 < work.reads <= 1  # two rows of a step may want neighbouring pages
    assert work.added == 0


def test_keys_that_do_not_exist_are_neither_read_nor_put_out(folder: Path) -> None:
    whole = run(folder, "hybrid").state.work_per_row
    half = run(folder, "hybrid", replace(SMALL, matched_share=0.5)).state.work_per_row
    assert half.added == pytest.approx(0.5, abs=0.03)
    assert half.output_rows == pytest.approx(0.5, abs=0.03)
    assert half.reads < 0.7 * whole.reads


def test_a_row_finds_all_rows_of_its_key(folder: Path) -> None:
    found = run(folder, "tide", replace(SMALL, rows_per_key=4.0))
    assert found.state.work_per_row.output_rows == pytest.approx(4, abs=0.1)


def test_popularity_in_the_order_of_the_disk_helps_pages_that_stay(folder: Path) -> None:
    scattered = run(folder, "x_hybrid", stream_rows=10_000).state
    ordered = run(folder, "x_hybrid", replace(SMALL, popular_first=True), stream_rows=10_000).state
    assert ordered.hit_share > 3 * scattered.hit_share


def test_hot_rows_are_hit_more_when_the_stream_is_skewed(folder: Path) -> None:
    states = [run(folder, "tide", replace(SMALL, zipf_exponent=z)).state for z in (0.0, 1.25)]
    assert states[1].hit_share > states[0].hit_share + 0.3
    assert states[1].rows_per_s(COSTS_OF_2008) > states[0].rows_per_s(COSTS_OF_2008)


def test_the_same_seed_counts_the_same(folder: Path) -> None:
    first, again = (run(folder, "cache", stream_rows=5_000).counts for _ in range(2))
    assert first == again
    assert run(folder, "cache", stream_rows=5_000, seed=8).counts != first


def test_too_little_memory_is_refused_as_by_the_join(folder: Path) -> None:
    with pytest.raises(BudgetError):
        run_virtual("mesh", SMALL, memory_bytes=10_000, folder=folder)
