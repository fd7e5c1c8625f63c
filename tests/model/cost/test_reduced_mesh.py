"""R-MESHJOIN: a window that does not depend on the steps of a cycle."""

from dataclasses import replace

from tidemill.join.mesh_sizes import MeshSizes
from tidemill.model.cost.reduced_mesh import MODEL
from tidemill.model.workload import Workload

# 1,000 pages of 100 rows.
SALES = Workload(
    master_rows=100_000, master_row_bytes=160, stream_row_bytes=24, zipf_exponent=0.0, page_bytes=16_000
)
# A window of 64 * 250 = 16,000 rows; arrivals hold 100,000 / (24 + 56) = 1,250 rows.
SIZES = MeshSizes(
    stream_rows_per_step=250,
    master_pages_per_step=10,
    queue_packets=64,
    pending_bytes=1_400_000,
    queue_bytes=8_192,
    arrivals_bytes=100_000,
    disk_buffer_bytes=320_000,
    index_bytes=16_000,
    output_bytes=100_000,
)


def test_a_cycle_serves_the_whole_window():
    work = MODEL.steady_state(SALES, SIZES).work_per_row
    assert (1 / work.reads, work.master_rows) == (16_000 / 100, 100_000 / 16_000)


def test_few_steps_bring_fewer_rows_than_the_window_holds():
    sizes = replace(SIZES, master_pages_per_step=200)
    assert MODEL.cycle(SALES, sizes).rows == 5 * 1_250


def test_the_least_memory_does_not_grow_with_the_master_data():
    larger = replace(SALES, master_rows=100 * SALES.master_rows)
    least = 300_000 + larger.index_bytes
    assert MODEL.default_sizes(larger, least).queue_packets == 64
