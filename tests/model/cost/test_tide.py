"""The model of TIDE: examples calculated by hand, the join's own sizes, and one cell counted in virtual time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tidemill.join.output import OutputPlan
from tidemill.join.tide import TideJoin
from tidemill.join.tide_sizes import TideSizes
from tidemill.lab.virtual import run_virtual
from tidemill.lab.virtual_rows import as_stored, open_store, stream_schema
from tidemill.model.cost.tide import MODEL
from tidemill.model.cost.tide_hot import hit_share
from tidemill.model.cost.tide_reads import RegionRates, rows_per_region_read
from tidemill.model.popularity import Popularity
from tidemill.model.work import COSTS_OF_2008
from tidemill.model.workload import Workload

MEMORY_BYTES = 6_000_000


def sales(zipf: float, **options: bool) -> Workload:
    """A million rows: 7,353 pages, 460 regions."""
    return Workload(
        master_rows=1_000_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=zipf, **options
    )


def fixed(workload: Workload, hot_share: float) -> TideSizes:
    sizes = MODEL.default_sizes(workload, MEMORY_BYTES)
    return replace(sizes.with_hot_share(hot_share), moves_memory=False)


def alike(regions: int) -> RegionRates:
    return RegionRates(np.array([float(regions)]), np.array([1 / regions]))


def test_half_as_many_rows_wait_for_a_region_as_a_read_serves():
    assert rows_per_region_read(alike(460), 46_000, densest_share=0) == pytest.approx(200, rel=1e-3)


def test_with_hardly_anybody_waiting_a_read_serves_one_row():
    assert rows_per_region_read(alike(10_000), 10, densest_share=0) == pytest.approx(1, abs=0.01)


def test_where_misses_crowd_in_few_regions_reads_serve_more_rows():
    """Of 100 regions 10 get nine in ten misses. Let the oldest wait while 100 rows come: 9 more come for each of the ten
    and 1/9 for the others; these are read each 100 + 900 rows, those each 100 + 11.1; a read serves 1 / (10/111.1 +
    90/1000) = 5.56 rows, and 10 · (1 + 9/2) · 0.9 + 90 · (1 + 1/18) · 0.1 = 59 wait.
    """
    crowded = RegionRates(np.array([10.0, 90.0]), np.array([0.09, 0.1 / 90]))
    assert rows_per_region_read(crowded, 59, densest_share=0) == pytest.approx(5.56, rel=0.01)
    assert rows_per_region_read(alike(100), 59, densest_share=0) == pytest.approx(1.75, rel=0.01)


def test_reading_the_densest_regions_serves_a_little_more():
    by_age, by_both = (rows_per_region_read(alike(100), 1_000, densest_share=share) for share in (0, 0.5))
    assert by_age + 0.5 < by_both < by_age + 1


@pytest.mark.parametrize("regions", [63, 460, 3677])
@pytest.mark.parametrize("zipf", [0, 1, 1.25])
def test_all_misses_come_to_all_regions(zipf: float, regions: int):
    popularity = Popularity(500_000, exponent=zipf)
    hot = (np.cumsum(popularity.counts) <= 100).astype(np.float64)
    for spread in (RegionRates.scattered, RegionRates.in_order):
        rates = spread(popularity, hot, regions)
        assert rates.regions.sum() == pytest.approx(regions)
        assert rates.regions @ rates.shares == pytest.approx(1, rel=0.02)


def test_chance_makes_hot_rows_a_little_worse_than_the_true_top():
    popularity = Popularity(1_000_000, exponent=1)
    assert 0.97 < hit_share(popularity, 14_000) / popularity.share_of_top(14_000) < 1
    assert hit_share(popularity, 14_000) == pytest.approx(0.693, abs=0.005), "as was counted"


def test_one_turn_over_the_disk_serves_twice_the_rows_that_wait():
    """7,353 pages of 16 KiB are 120 MB; a row costs as many bytes as 120 MB by twice those that wait."""
    workload = sales(0)
    sizes = fixed(workload, 0.02)
    state, flow = MODEL.steady_state(workload, sizes), MODEL.flow(workload, sizes)
    expected = 7_353 * 16_384 * flow.miss_share / (2 * flow.waiting_rows)
    assert state.work_per_row.read_bytes == pytest.approx(expected, rel=0.02)
    assert state.hit_share == pytest.approx(flow.entries / 1_000_000, rel=0.01)


def test_rows_that_wait_leave_place_for_a_piece_and_for_reads_under_way():
    """5 % for waiting rows of 24 bytes, eight to a strip; an eighth of the room stays free, less half a piece."""
    workload = sales(0)
    sizes = fixed(workload, 0.2)
    most = sizes.waiting_bytes // (24 + 9 / 8)
    piece = sizes.arrivals_bytes / (20 + 56)
    flow = MODEL.flow(workload, sizes)
    read = flow.regions_per_read * flow.rows_per_region
    free = most / 8 - piece * flow.miss_share / 2
    # The buffer has room for the read that is matched and for two others.
    assert flow.under_way == pytest.approx(2 * read, rel=0.01)
    assert flow.waiting_rows == pytest.approx(most - free - 2.5 * read, rel=0.01)


def test_memory_goes_where_the_stream_wants_it():
    shares = [
        MODEL.settled(sales(zipf), MODEL.default_sizes(sales(zipf), MEMORY_BYTES)).hot_share
        for zipf in (0, 1, 1.25)
    ]
    assert shares[0] == pytest.approx(0.02, abs=0.001)
    assert shares[0] < shares[1] <= shares[2]


def test_sizes_that_stay_are_predicted_as_they_are():
    sizes = fixed(sales(0), 0.5)
    assert MODEL.settled(sales(0), sizes) is sizes


def test_rates_grow_with_skew_and_with_memory():
    def rate(zipf: float, memory_bytes: int) -> float:
        sizes = MODEL.default_sizes(sales(zipf), memory_bytes)
        return MODEL.steady_state(sales(zipf), sizes).rows_per_s(COSTS_OF_2008)

    by_skew = [rate(zipf, MEMORY_BYTES) for zipf in (0, 0.5, 1, 1.25)]
    by_memory = [rate(1, size) for size in (600_000, 1_200_000, 6_000_000, 24_000_000)]
    assert by_skew == sorted(by_skew)
    assert by_memory == sorted(by_memory)


def test_the_grid_has_the_default_and_fits_the_memory():
    grid = list(MODEL.size_grid(sales(1), MEMORY_BYTES))
    assert grid[0] == MODEL.default_sizes(sales(1), MEMORY_BYTES)
    assert len(grid) == len(set(grid)) > 4
    assert all(sizes.total_bytes == MEMORY_BYTES for sizes in grid)


def test_default_sizes_are_those_that_the_join_takes(tmp_path: Path):
    asked = replace(sales(1), master_rows=20_000)
    master = open_store(asked, tmp_path)
    plan = OutputPlan.of(stream_schema(asked), master.schema, stream_key="key", master_key=master.key)
    stored = as_stored(asked, master)
    for memory_bytes in (200_000, 1_000_000):
        assert MODEL.default_sizes(stored, memory_bytes) == TideJoin.sizes_for(master, plan, memory_bytes)


def test_a_prediction_fits_what_is_counted(tmp_path: Path):
    asked = replace(sales(1), master_rows=50_000)
    run = run_virtual("tide", asked, memory_bytes=600_000, folder=tmp_path)
    predicted = MODEL.steady_state(run.workload, MODEL.default_sizes(run.workload, 600_000))
    measured = run.state.rows_per_s(COSTS_OF_2008)
    assert predicted.rows_per_s(COSTS_OF_2008) == pytest.approx(measured, rel=0.15)
