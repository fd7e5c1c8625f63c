"""Four times the rows in a memory that may not grow: what is too much is shed, told, kept and joined later, each row once."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.memory import MemoryBudget
from tidemill.join.adaptive_mesh import AdaptiveMeshJoin
from tidemill.join.catalog import make_join
from tidemill.join.protocol import SemiStreamJoin
from tidemill.join.shedding.catalog import make_strategy
from tidemill.join.shedding.drive import drive_shedding
from tidemill.join.shedding.shedding import Shedding
from tidemill.join.shedding.strategy import ShedReport
from tidemill.master import MasterData
from tidemill.model.cost.adaptive_mesh import MODEL
from tidemill.model.online import Adjustment, MeshTuner
from tidemill.model.work import COSTS_OF_2008
from tidemill.model.workload import Workload

STREAM = pa.schema([("row", pa.int64()), ("key", pa.int64())])
KEYS = 20_000
FASTER = 4
SHED_BYTES = 2_000_000
BATCH_ROWS = 500


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    """About 300 pages."""
    keys = np.arange(KEYS)
    table = pa.table({"key": keys, "name": [f"name of {key} " + "x" * 90 for key in keys]})
    return MasterData.build(table, key="key", path=tmp_path_factory.mktemp("m"), page_bytes=8192)


@dataclass
class Stream:
    """A calm, a burst and a calm again, then rows that were shed come back at the pace of the calm."""

    shedding: Shedding
    join: SemiStreamJoin
    rows_of_step: Callable[[int], float]
    """That come in a calm while a step reads so many pages."""
    steps_of_each: int
    sold: int = 0
    steps: int = 0
    pages_read: int = 0
    reports: list[tuple[float, ShedReport]] = field(default_factory=list)
    """With the time, 0 … 1 in the first calm, 1 … 2 in the burst, 2 … 3 in the calm after it."""
    lane: list[pa.RecordBatch] = field(default_factory=list)
    joined: Counter[int] = field(default_factory=Counter)

    @property
    def time(self) -> float:
        return self.steps / self.steps_of_each

    def rounds(self) -> Iterator[list[pa.RecordBatch]]:
        chance = np.random.default_rng(3)
        while self.time < 3 or self.lane:
            self.steps += 1
            rows = round(self.rows_of_step(self.pages_read) * (FASTER if 1 <= self.time < 2 else 1))
            if self.time >= 3:
                back = self.lane[: 1 + rows // BATCH_ROWS]
                self.lane = self.lane[len(back) :]
                yield back
                continue
            keys = chance.integers(0, KEYS, rows)
            numbers = np.arange(self.sold, self.sold + rows)
            self.sold += rows
            batch = pa.record_batch([pa.array(numbers), pa.array(keys)], schema=STREAM)
            yield [batch.slice(at, BATCH_ROWS) for at in range(0, rows, BATCH_ROWS)]

    def run(self, arrived: Callable[[int], object] | None = None) -> None:
        for step in drive_shedding(self.join, self.shedding, self.rounds(), arrived=arrived):
            self.pages_read = step.step.pages_read
            self.joined.update(row for out in step.step.outputs for row in out.column("row").to_pylist())
            self.lane += [rows for rows in step.shed if rows.num_rows]
            if step.report is not None:
                self.reports.append((self.time, step.report))
            assert self.steps < 20 * self.steps_of_each, "rows are shed again and again"

    def shed_share(self, since: float, until: float) -> float:
        told = [one for time, one in self.reports if since <= time < until]
        return sum(one.shed_rows for one in told) / sum(one.arrived_rows for one in told)

    def judge(self) -> None:
        """In the burst half of the rows are too many, and none before, once the join has found its sizes, nor some time after, and no row is lost."""
        assert self.shed_share(0.5, 1) == 0
        # More than half: rows come in steps that read nothing too, since output was full.
        assert 0.35 < self.shed_share(1.5, 2) < 0.7
        assert self.shed_share(2.5, 3) == 0
        assert all(one.stated_error > 0 for _, one in self.reports if one.shed_rows)
        assert self.joined == Counter(range(self.sold))


def test_an_adaptive_mesh_join_sheds_once_more_memory_is_refused(master: MasterData):
    shedding, budget = shedding_in(3_000_000)
    join = make_join("adaptive_mesh", master, STREAM, stream_key="key", budget=budget)
    assert isinstance(join, AdaptiveMeshJoin)
    workload = Workload.of(master, stream_row_bytes=16, zipf_exponent=0)
    told: list[Adjustment] = []
    tuner = MeshTuner(join, workload, COSTS_OF_2008, smoothing_seconds=1, on_overload=told.append)
    most_rows_per_s = max(rate_of(workload, sizes) for sizes in tuner._best())
    now = 0.0

    def rows_of_step(pages: int) -> float:
        """At half of the rate that the memory gives."""
        nonlocal now
        sizes = join.sizes
        seconds = sizes.stream_rows_per_step / rate_of(workload, sizes) / sizes.master_pages_per_step
        now += seconds * max(1, pages)
        return most_rows_per_s / 2 * seconds * max(1, pages)

    held: list[tuple[float, int]] = []

    def arrived(rows: int) -> None:
        tuner.arrived(rows, now)
        tuner.adjust()
        held.append((stream.time, join.budget.held_bytes))

    stream = Stream(shedding, join, rows_of_step, steps_of_each=200)
    stream.run(arrived)
    calm, burst = (max(size for time, size in held if begin <= time < begin + 0.5) for begin in (0.5, 1.5))
    assert burst > 1.2 * calm, "first it asks for memory"
    assert max(size for _, size in held) <= budget.total_bytes
    assert max(one.shed_share for one in told) == pytest.approx(0.5, abs=0.15)
    assert not told[-1].is_overload
    stream.judge()


def rate_of(workload: Workload, sizes: object) -> float:
    return MODEL.steady_state(workload, sizes).rows_per_s(COSTS_OF_2008)  # type: ignore[arg-type]


def test_tide_sheds_what_its_memory_cannot_serve(master: MasterData):
    def tide(budget: MemoryBudget) -> SemiStreamJoin:
        return make_join("tide", master, STREAM, stream_key="key", budget=budget)

    trial = tide(MemoryBudget(2_000_000))
    taken, pages, chance = 0, 0, np.random.default_rng(5)
    for _ in range(300):
        rows = trial.room(16)
        keys = chance.integers(0, KEYS, rows)
        trial.offer(pa.record_batch([pa.array(np.arange(rows)), pa.array(keys)], schema=STREAM))
        pages += trial.step().pages_read
        taken += rows
    rows_of_a_page = taken / pages  # the disk sets the pace: so many rows are served while a page is read
    shedding, budget = shedding_in(2_000_000)
    stream = Stream(
        shedding, tide(budget), lambda pages: rows_of_a_page / 2 * max(1, pages), steps_of_each=200
    )
    stream.run()
    stream.judge()


def shedding_in(join_bytes: int) -> tuple[Shedding, MemoryBudget]:
    """A budget of which the shedding has its part; what is left is for the join."""
    budget = MemoryBudget(join_bytes + SHED_BYTES)
    return Shedding(make_strategy("sample"), budget, memory_bytes=SHED_BYTES), budget
