"""The experiment on tide's own tuning, at a small size: taste and rate change, the join follows, and no row is lost."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tidemill.lab.experiments import tuning_tide
from tidemill.lab.experiments.tuning_tide import COSTS, Simulation, Track
from tidemill.lab.virtual_rows import as_stored, open_store
from tidemill.model.cost.tide import MODEL
from tidemill.model.workload import Workload

SMALL = Workload(master_rows=60_000, master_row_bytes=120, stream_row_bytes=16, zipf_exponent=0)
MEMORY_BYTES = 700_000


def test_memory_follows_the_skew_within_two_rooms_and_no_row_is_lost(tmp_path: Path):
    master = open_store(SMALL, tmp_path)
    uniform = as_stored(SMALL, master)
    sizes = MODEL.default_sizes(uniform, MEMORY_BYTES)
    simulation = Simulation(master, MEMORY_BYTES, sizes, seed=7)
    rate = tuning_tide.LOAD_BEFORE * MODEL.steady_state(uniform, sizes).rows_per_s(COSTS)
    simulation.run(0.0, rows=60_000, arrivals_per_s=rate)
    assert simulation.join.sizes.hot_share < 0.05
    room = simulation.join._room.most_rows
    simulation.run(1.0, rows=2 * room, arrivals_per_s=tuning_tide.FASTER * rate)
    assert simulation.join.sizes.hot_share > 0.05
    simulation.drain()
    assert simulation.track.rows_lost_or_doubled() == 0
    assert simulation.track.rows[-1] == 60_000 + 2 * room


def test_a_join_that_keeps_up_is_as_fast_as_rows_come(tmp_path: Path):
    master = open_store(SMALL, tmp_path)
    sizes = MODEL.default_sizes(as_stored(SMALL, master), MEMORY_BYTES)
    simulation = Simulation(master, MEMORY_BYTES, replace(sizes, moves_memory=False), seed=7)
    simulation.run(0.0, rows=5_000, arrivals_per_s=500)
    assert simulation.track.rows_per_s(1_000, 5_000) == pytest.approx(500, rel=0.05)
    assert simulation.join.sizes.hot_share == sizes.hot_share


def test_a_rate_is_reached_when_it_is_not_lost_again():
    spans = np.ones(40)
    assert tuning_tide.reached(spans) == 1
    spans[[3, 8]] = 0.89
    assert tuning_tide.reached(spans) == 1 + 9 / 8  # the ninth span ends a room after it began
    spans[-1] = 0.5
    assert tuning_tide.reached(spans) == float("inf")


def test_lost_and_doubled_rows_are_counted():
    track = Track(rows=[0, 4], seconds=[0.0, 1.0], events=[[0, 1], [1, 3]])
    assert track.rows_lost_or_doubled() == 2
