"""AMESHJOIN: iterations that do not end with a cycle are cut where rows leave."""

from dataclasses import replace

import pytest

from tidemill.join.mesh_sizes import MeshSizes
from tidemill.model.cost.adaptive_mesh import MODEL
from tidemill.model.cost.mesh import MODEL as MESH
from tidemill.model.workload import Workload

# 1,000 pages of 100 rows.
SALES = Workload(
    master_rows=100_000, master_row_bytes=160, stream_row_bytes=24, zipf_exponent=0.0, page_bytes=16_000
)
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


def test_iterations_that_end_with_a_cycle_are_steps_of_the_mesh_join():
    assert MODEL.cycle(SALES, SIZES) == MESH.cycle(SALES, SIZES)


def test_other_iterations_take_two_reads():
    sizes = replace(SIZES, master_pages_per_step=16, queue_packets=63)
    cycle = MODEL.cycle(SALES, sizes)
    # 1,000 / 16 = 62.5 iterations, each cut at its eighth page, and one more cut where the master data ends
    assert (cycle.rows, cycle.reads) == (62.5 * 200, 2 * 62.5 + 1)
    work = MODEL.steady_state(SALES, sizes).work_per_row
    assert work.read_bytes == pytest.approx(16 * 16_000 / 200)


def test_all_pages_in_one_iteration():
    sizes = replace(SIZES, master_pages_per_step=1000, queue_packets=1)
    assert MODEL.cycle(SALES, sizes).reads == 1
