"""An adaptive mesh join under a tuner: sizes follow the stream, refusals are told, and no row is lost."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.memory import MemoryBudget
from tidemill.join.adaptive_mesh import AdaptiveMeshJoin
from tidemill.join.catalog import make_join
from tidemill.join.mesh_sizes import MeshSizes
from tidemill.master import MasterData
from tidemill.model.cost.adaptive_mesh import MODEL
from tidemill.model.online import Adjustment, ArrivalRate, MeshTuner
from tidemill.model.work import COSTS_OF_2008, Costs
from tidemill.model.workload import Workload

STREAM = pa.schema([("row", pa.int64()), ("key", pa.int64())])
ROWS = 20_000
COSTS = COSTS_OF_2008


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    """About 300 pages."""
    keys = np.arange(ROWS)
    table = pa.table({"id": keys, "name": [f"name of {key} " + "x" * 90 for key in keys]})
    return MasterData.build(table, key="id", path=tmp_path_factory.mktemp("m"), page_bytes=8192)


@pytest.fixture(scope="module")
def workload(master: MasterData) -> Workload:
    return Workload.of(master, stream_row_bytes=16, zipf_exponent=0)


def join_on(master: MasterData, memory_bytes: int = 3_000_000) -> AdaptiveMeshJoin:
    join = make_join("adaptive_mesh", master, STREAM, stream_key="key", budget=MemoryBudget(memory_bytes))
    assert isinstance(join, AdaptiveMeshJoin)
    return join


def tuned(join: AdaptiveMeshJoin, workload: Workload, rate: float, **wishes: object) -> MeshTuner:
    """A tuner that has seen a stream of that rate for a while."""
    tuner = MeshTuner(join, workload, COSTS, smoothing_seconds=5, **wishes)  # type: ignore[arg-type]
    for second in range(30):
        tuner.arrived(round(rate), float(second))
    return tuner


def rate_of(join: AdaptiveMeshJoin, workload: Workload) -> float:
    return MODEL.steady_state(workload, join.sizes).rows_per_s(COSTS)


def test_the_rate_is_that_of_the_stream_whatever_the_chops():
    rate, told = ArrivalRate(smoothing_seconds=10), 0
    for now in np.cumsum(np.random.default_rng(3).exponential(0.2, 2000)).tolist():
        came = int(now * 500) - told
        rate.saw(came // 3, now)
        rate.saw(came - came // 3, now)  # at the same moment
        told += came
    assert rate.rows_per_s == pytest.approx(500, rel=0.05)


@pytest.mark.parametrize("rate", [500, 2_000, 8_000])
def test_the_least_memory_is_as_fast_as_the_stream_and_no_faster(
    master: MasterData, workload: Workload, rate: int
):
    join = join_on(master)
    told = tuned(join, workload, rate).adjust()
    assert told is not None
    assert rate * 1.1 <= rate_of(join, workload) * 1.001
    assert rate_of(join, workload) < rate * 1.3
    assert not told.is_overload
    assert told.memory_bytes == join.budget.held_bytes


def test_memory_follows_the_rate_up_and_down(master: MasterData, workload: Workload):
    join = join_on(master)
    tuner = tuned(join, workload, 1_000)
    held = []
    for second, rate in enumerate([1_000] * 30 + [8_000] * 30 + [1_000] * 60, start=30):
        tuner.arrived(rate, float(second))
        tuner.adjust()
        held.append(join.budget.held_bytes - join.sizes.arrivals_bytes - join.sizes.output_bytes)
    assert held[59] > 1.5 * held[29]
    assert held[-1] == pytest.approx(held[29], rel=0.1)


def every_size(tuner: MeshTuner) -> list[MeshSizes]:
    rows = np.unique(np.geomspace(1, 3000, 100).astype(int)).tolist()
    return [tuner._sizes(few, pages) for pages in range(1, 120) for few in rows]


def test_the_least_memory_is_that_of_brute_force(master: MasterData, workload: Workload):
    join = join_on(master)
    tuner = tuned(join, workload, 4_000)
    tuner.adjust()
    best = min(sizes.total_bytes for sizes in every_size(tuner) if tuner._rate_of(sizes) >= 4_400)
    assert join.sizes.total_bytes <= best * 1.02


def test_the_best_rate_is_that_of_brute_force(master: MasterData, workload: Workload):
    join = join_on(master, 1_000_000)
    tuner = tuned(join, workload, 100, goal="best_rate")
    tuner.adjust()
    best = max(tuner._rate_of(sizes) for sizes in every_size(tuner) if sizes.total_bytes <= 1_000_000)
    assert rate_of(join, workload) >= best * 0.98


def test_sizes_stay_while_the_rate_wavers(master: MasterData, workload: Workload):
    join = join_on(master)
    tuner = tuned(join, workload, 2_000)
    assert tuner.adjust() is not None
    sizes = join.sizes
    for second in range(30, 90):
        tuner.arrived(2_000 + (150 if second % 2 else -150), float(second))
        assert tuner.adjust() is None
    assert join.sizes is sizes


def test_an_overload_is_told_with_its_share_and_so_is_its_end(master: MasterData, workload: Workload):
    told: list[Adjustment] = []
    join = join_on(master, 600_000)
    tuner = tuned(join, workload, 100_000, on_overload=told.append)
    tuner.adjust()
    assert told[0].is_overload
    assert told[0].shed_share == pytest.approx(1 - rate_of(join, workload) / 100_000)
    assert join.budget.held_bytes <= 600_000
    for second in range(30, 120):
        tuner.arrived(50, float(second))
        tuner.adjust()
    assert not told[-1].is_overload
    assert told[-1].shed_share == 0
    count = len(told)
    tuner.follow(replace(workload, zipf_exponent=1.0))
    assert tuner.adjust() is not None
    assert len(told) == count


def test_a_stream_faster_than_the_processor_is_an_overload(master: MasterData, workload: Workload):
    slow: Costs = replace(COSTS, add_seconds=1e-3)
    join = join_on(master)
    tuner = MeshTuner(join, workload, slow)
    for second in range(5):
        tuner.arrived(2_000, float(second))
    told = tuner.adjust()
    assert told is not None
    assert told.is_overload
    assert told.service_rows_per_s < 1_000


def test_no_row_is_lost_or_doubled_while_the_rate_jumps(master: MasterData, workload: Workload):
    join = join_on(master)
    tuner = MeshTuner(join, workload, COSTS, smoothing_seconds=2)
    chance = np.random.default_rng(11)
    seen: Counter[int] = Counter()
    offered, changes = 0, 0

    def step() -> None:
        seen.update(row for out in join.step().outputs for row in out.column("row").to_pylist())

    for second in range(120):
        rate = (200, 3_000, 500, 20_000)[second // 30]
        tuner.arrived(rate, float(second))
        changes += tuner.adjust() is not None
        rows = min(rate // 10, join.room(16))
        keys = chance.integers(0, ROWS, rows)
        join.offer(
            pa.record_batch([pa.array(np.arange(offered, offered + rows)), pa.array(keys)], schema=STREAM)
        )
        offered += rows
        step()
    while join.pending_rows:
        step()
    assert changes > 5
    assert seen == Counter(range(offered))
