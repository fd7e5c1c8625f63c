"""MESHJOIN's equations on round numbers, and what must hold for any."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import BudgetError
from tidemill.join.mesh_sizes import MeshSizes
from tidemill.model.catalog import model_of
from tidemill.model.cost.mesh import MODEL
from tidemill.model.work import COSTS_OF_2008, Costs, ReadCurve
from tidemill.model.workload import Workload

# 1,000 pages of 100 rows.
SALES = Workload(
    master_rows=100_000, master_row_bytes=160, stream_row_bytes=24, zipf_exponent=0.0, page_bytes=16_000
)
# 100 steps of 10 pages and 200 rows; arrivals hold 100,000 / (24 + 56) = 1,250 rows.
SIZES = MeshSizes(
    stream_rows_per_step=200,
    master_pages_per_step=10,
    queue_packets=100,
    pending_bytes=1_400_000,
    queue_bytes=12_800,
    arrivals_bytes=100_000,
    disk_buffer_bytes=320_000,
    index_bytes=16_000,
    output_bytes=100_000,
)
# A read of 160,000 bytes takes 10 + 2 ms.
ROUND_COSTS = Costs(
    read=ReadCurve.of_disk(seek_seconds=0.01, bytes_per_s=80e6),
    probe=ReadCurve(sizes=(0.0, 1e9), read_seconds=(1e-6, 1e-6)),
    stream_row_seconds=1e-6,
    add_seconds=2e-6,
    remove_seconds=3e-6,
    output_row_seconds=4e-6,
    hot_change_seconds=0.0,
    step_seconds=0.001,
)


def test_a_row_has_its_share_of_a_step():
    work = MODEL.steady_state(SALES, SIZES).work_per_row
    assert (work.reads, work.read_bytes, work.master_rows) == (1 / 200, 160_000 / 200, 1000 / 200)
    assert (work.added, work.removed, work.output_rows, work.hot_probes) == (1, 1, 1, 0)


def test_the_rate_is_that_of_the_papers_equation():
    # c_loop = 12 ms read + 1 ms + 1,000 lookups of 1 µs + 200 rows * (1 + 2 + 3 + 4) µs = 16 ms for 200 rows
    assert MODEL.steady_state(SALES, SIZES).rows_per_s(ROUND_COSTS) == pytest.approx(200 / 0.016)


def test_a_row_waits_one_cycle():
    state = MODEL.steady_state(SALES, SIZES)
    assert state.waiting_rows == 20_000
    assert state.waiting_seconds(ROUND_COSTS) == pytest.approx(100 * 0.016)


def test_the_last_step_of_a_cycle_may_be_shorter():
    sizes = replace(SIZES, master_pages_per_step=11, queue_packets=91)  # 1,000 / 11 = 90.9
    cycle = MODEL.cycle(SALES, sizes)
    assert (cycle.reads, cycle.rows) == (91, 91 * 200)


def test_a_step_takes_no_more_rows_than_have_arrived():
    sizes = replace(SIZES, arrivals_bytes=8_000)  # 100 rows
    assert MODEL.cycle(SALES, sizes).rows == 100 * 100


def test_a_short_queue_lets_fewer_packets_wait():
    assert MODEL.cycle(SALES, replace(SIZES, queue_packets=50)).rows == 50 * 200


def test_several_matches_and_rows_without():
    workload = replace(SALES, rows_per_key=3.0, matched_share=0.5)
    assert MODEL.steady_state(workload, SIZES).work_per_row.output_rows == 1.5


def test_the_split_names_every_reservation():
    split = MODEL.steady_state(SALES, SIZES).memory_bytes
    assert sum(split.values()) == SIZES.total_bytes
    assert set(split) == {"pending", "queue", "arrivals", "disk_buffer", "index", "output"}


FAMILY = ["mesh", "adaptive_mesh", "reduced_mesh", "balanced"]
WORKLOADS = st.builds(
    Workload,
    master_rows=st.integers(10_000, 50_000_000),
    master_row_bytes=st.integers(16, 500),
    stream_row_bytes=st.integers(8, 100),
    zipf_exponent=st.sampled_from([0.0, 0.5, 1.0, 1.25]),
)


def rate(name: str, workload: Workload, memory_bytes: int) -> float:
    model = model_of(name)
    sizes = model.default_sizes(workload, memory_bytes)
    return model.steady_state(workload, sizes).rows_per_s(COSTS_OF_2008)


def works_from(name: str, workload: Workload) -> int:
    with pytest.raises(BudgetError) as refusal:
        model_of(name).default_sizes(workload, 1)
    return int(refusal.value.least_bytes)


# Without adaptive_mesh: a buffer that does not divide the pages costs it a second read an iteration.
STEADY = ["mesh", "reduced_mesh", "balanced"]


@pytest.mark.parametrize("name", STEADY)
@given(workload=WORKLOADS, factor=st.floats(1, 100))
@settings(max_examples=20, deadline=None)
def test_more_memory_is_never_much_slower(name: str, workload: Workload, factor: float):
    # The default buffer jumps by a page and a packet lacks a part of a row: hence "much", and not right at the least.
    memory_bytes = int(2 * works_from(name, workload) * factor)
    assert rate(name, workload, 2 * memory_bytes) > 0.98 * rate(name, workload, memory_bytes)


@pytest.mark.parametrize("name", STEADY)
@given(workload=WORKLOADS)
@settings(max_examples=20, deadline=None)
def test_more_master_data_is_slower(name: str, workload: Workload):
    twice = replace(workload, master_rows=2 * workload.master_rows)
    memory_bytes = 2 * works_from(name, twice)
    assert rate(name, twice, memory_bytes) < rate(name, workload, memory_bytes)


@pytest.mark.parametrize("name", FAMILY)
@given(workload=WORKLOADS)
@settings(max_examples=10, deadline=None)
def test_a_grid_has_the_default_and_stays_within_the_budget(name: str, workload: Workload):
    model, memory_bytes = model_of(name), 3 * works_from(name, workload)
    grid = list(model.size_grid(workload, memory_bytes))
    assert model.default_sizes(workload, memory_bytes) in grid
    assert len(grid) == len(set(grid)) > 3
    assert max(sizes.total_bytes for sizes in grid) <= memory_bytes


@pytest.mark.parametrize("name", ["mesh", "adaptive_mesh", "reduced_mesh"])
def test_skew_changes_nothing(name: str):
    rates = {rate(name, replace(SALES, zipf_exponent=zipf), 2_000_000) for zipf in (0.0, 0.5, 1.25)}
    assert len(rates) == 1
