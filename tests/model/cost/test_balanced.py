"""The balanced join: which keys turn hot, and how that feeds back on the rows of a cycle."""

from dataclasses import replace
from math import exp

import numpy as np
import pytest

from tidemill.join.balanced_sizes import BalancedSizes
from tidemill.model.cost.balanced import (
    MODEL,
    chance_of_more,
    hot_keys,
    hot_share,
    least_waiting,
    rows_per_step,
)
from tidemill.model.cost.mesh import MODEL as MESH
from tidemill.model.work import COSTS_OF_2008
from tidemill.model.workload import Workload

# 1,000 pages of 100 rows.
SALES = Workload(
    master_rows=100_000, master_row_bytes=160, stream_row_bytes=24, zipf_exponent=1.0, page_bytes=16_000
)
SIZES = BalancedSizes(
    stream_rows_per_step=200,
    master_pages_per_step=10,
    queue_packets=100,
    pending_bytes=1_400_000,
    queue_bytes=12_800,
    arrivals_bytes=100_000,
    disk_buffer_bytes=320_000,
    index_bytes=16_000,
    output_bytes=100_000,
    hot_rows_bytes=1_000_000,
)


def test_the_border_is_where_both_sides_take_the_same_memory():
    # 160 bytes of row and 40 of entry, against 25 bytes of hash and one and a half times 24
    assert least_waiting(SALES) == pytest.approx(200 / 61)


def test_chances_are_those_of_random_arrivals():
    for mean in (0.5, 3.0, 6.0):
        at_most_two = exp(-mean) * (1 + mean + mean**2 / 2)
        assert chance_of_more(np.array([mean]), 3)[0] == pytest.approx(1 - at_most_two, abs=0.005)


def test_a_key_that_comes_as_often_as_it_goes_at_a_look_is_hot_a_third_of_the_time():
    # Half of the cycles bring it in, and each of two looks a cycle throws it out with the same chance.
    mean = np.linspace(0, 20, 20_001)
    even = mean[np.argmin(np.abs(chance_of_more(mean, 7) - 0.5))]
    assert hot_share(np.array([even]), 7)[0] == pytest.approx(1 / 3, abs=0.001)


def test_a_uniform_stream_has_no_hot_keys():
    uniform = replace(SALES, zipf_exponent=0.0)
    assert hot_keys(uniform, 20_000, most_keys=10_000).hit_share < 0.001
    assert MODEL.steady_state(uniform, SIZES).work_per_row.reads == pytest.approx(1 / 200, rel=0.01)


def test_hot_keys_are_the_most_frequent_ones_when_memory_ends():
    few = hot_keys(SALES, 100_000, most_keys=50)
    # The 50 most frequent of 100,000 keys carry (1 + 1/2 + … + 1/50) / (1 + … + 1/100,000) = 4.499 / 12.09
    assert few.keys == pytest.approx(50, rel=0.05)
    assert few.hit_share == pytest.approx(0.372, rel=0.02)


def test_hits_let_a_step_take_more_rows():
    # At a miss share of 1/2 the window gives 20,000 / (1 + 99/2) = 396, a little less than two packets.
    assert rows_per_step(SALES, SIZES, 100, 0.5) == pytest.approx(20_000 / 50.5)
    assert rows_per_step(SALES, SIZES, 100, 1.0) == pytest.approx(200)
    assert rows_per_step(SALES, SIZES, 100, 0.001) == 1_250  # what arrivals hold


def test_only_misses_wait_and_leave():
    state = MODEL.steady_state(SALES, SIZES)
    work = state.work_per_row
    assert 0.3 < state.hit_share < 0.8
    assert work.added == work.removed == pytest.approx(1 - state.hit_share)
    assert (work.hot_probes, work.output_rows) == (1, 1)
    assert work.reads < 1 / 200


def test_rows_that_match_nothing_are_no_hits():
    assert MODEL.steady_state(replace(SALES, matched_share=0.5), SIZES).hit_share < 0.5


@pytest.mark.parametrize(("zipf", "wins"), [(0.0, False), (1.0, True), (1.25, True)])
def test_it_beats_the_mesh_join_on_skewed_streams_alone(zipf: float, wins: bool):
    workload = replace(SALES, zipf_exponent=zipf)
    balanced, mesh = (
        model.steady_state(workload, model.default_sizes(workload, 2_000_000)).rows_per_s(COSTS_OF_2008)
        for model in (MODEL, MESH)
    )
    assert (balanced > mesh) is wins
