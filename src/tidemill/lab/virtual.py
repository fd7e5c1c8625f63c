"""Joins in virtual time: the real join on real pages, its operations counted and never timed.

```
warm-up: stretch after stretch, until two in a row cost the same ──▶ these two are what was measured
```
What each counter means stands in docs/models.md. Time comes only from `Costs`: the same operations cost what they
would on a disk of 2008, on this machine, or on any other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.join.parts.arrivals import WORK_BYTES_PER_ROW
from tidemill.join.protocol import SemiStreamJoin, StepReport
from tidemill.lab.data.data_set import DataSet, open_master
from tidemill.lab.virtual_rows import as_stored, open_store, stream_batches, stream_schema
from tidemill.master import MasterData
from tidemill.model.prediction import SteadyState
from tidemill.model.work import COSTS_OF_2008, Work
from tidemill.model.workload import Workload

OVERLAPPED = frozenset({"tide"})
"""Joins whose reads go on while rows are matched. `moij` can too where the store has threads; its paper does not."""
_LEAST_ROWS = 4_000
_LEAST_ROWS_TO_LEARN = 20_000  # who should be hot: a join with 115 hot rows took 30,000
_ROWS_PER_WAITING_ROW = 6
_ROWS_PER_HOT_ROW = 16  # fewer do not tell frequencies from chance
# Rows that must begin to wait, for each that waits. Where 94 % are hits, six stream rows for each are one phase of `cache`,
# and stretches of a long run then gave 2,800 to 14,700 rows/s.
_TURNS = 2
_STEADY = 0.03
_MOST_STRETCHES = 12


@dataclass(frozen=True)
class Counts:
    """All that a join did up to a moment."""

    rows_in: int = 0
    looked_at: float = 0.0
    """Rows that came, without those that arrived and were not looked at yet."""
    finished: int = 0
    waited: int = 0
    hot_hits: int = 0
    output_rows: int = 0
    pages: int = 0
    read_bytes: int = 0
    reads: int = 0
    steps: int = 0
    """Calls of `step` that read."""
    hot_changes: int = 0
    reports: int = 0
    waiting_rows: float = 0.0
    """Sums over all reports of what is held; `reports` makes them averages."""
    waiting_bytes: float = 0.0
    hot_bytes: float = 0.0

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(Counts)})


@dataclass(frozen=True)
class VirtualRun:
    """One join in full swing, by the operations that it did."""

    algorithm: str
    workload: Workload
    """As stored: what a prediction for this run must start from."""
    sizes: Any
    """Those with which the join began."""
    state: SteadyState
    warm_up_rows: int
    stream_rows: int
    """Measured."""
    is_settled: bool
    """Whether the last two stretches cost the same, within 3 %."""
    counts: Counts = field(repr=False)


def run_virtual(
    algorithm: str,
    workload: Workload,
    *,
    memory_bytes: int,
    sizes: Any = None,
    seed: int = 7,
    stream_rows: int | None = None,
    folder: Path,
    data: DataSet | None = None,
) -> VirtualRun:
    """The work of one stream row once the join has settled, counted.

    Args:
        algorithm: A name of the catalog of joins.
        workload: What is joined; an inner join of all columns.
        memory_bytes: The budget.
        sizes: Its split; the join's own if None.
        seed: Of the stream.
        stream_rows: Rows of a stretch. None for at least 4,000 (20,000 where some turn hot), six for each row that waits and
            sixteen for each hot one: then ends of a stretch do not matter. In any case so many that twice as many begin to
            wait as have room. At most twelve stretches are run.
        folder: Where master data is kept for other runs.
        data: Rows to join, with seeds of their own, where those made from the workload will not do.
    """
    master = open_master(data, folder) if data else open_store(workload, folder)
    batches = data.stream(folder) if data else stream_batches(workload, seed)
    try:
        options = {} if sizes is None else {"sizes": sizes}
        join: Any = make_join(
            algorithm,
            master,
            data.stream_schema if data else stream_schema(workload),
            stream_key=data.key if data else "key",
            budget=MemoryBudget(memory_bytes),
            **options,
        )
        began_with = join.sizes
        counting = Counting(join, master, workload, batches)
        before, after, is_settled = counting.until_settled(stream_rows)
        counted = after - before
        state = state_of(algorithm, master, counted, counting.held)
        stored = as_stored(workload, master)
        return VirtualRun(
            algorithm, stored, began_with, state, before.rows_in, counted.rows_in, is_settled, counted
        )
    finally:
        master.close()


class Counting:
    """Drives a join and adds up what it reports."""

    def __init__(
        self, join: SemiStreamJoin, master: MasterData, workload: Workload, batches: Iterator[Any]
    ) -> None:
        self._join, self._master, self._workload = join, master, workload
        self._reports = drive(join, batches)
        self._now = Counts()
        self._most_waiting = 0
        self.held: dict[str, int] = {}

    def until_settled(self, stretch_rows: int | None) -> tuple[Counts, Counts, bool]:
        """The moments before and after two stretches that cost the same, and whether they do."""
        marks, costs = [self._now], [0.0]
        while True:  # the first stretch fills the join
            marks.append(self._stretch(stretch_rows))
            costs.append(self._seconds(marks[-1] - marks[-2]))
            is_settled = len(marks) > 3 and abs(costs[-1] / costs[-2] - 1) < _STEADY
            if is_settled or len(marks) > _MOST_STRETCHES:
                return marks[-3], marks[-1], is_settled

    def _seconds(self, counts: Counts) -> float:
        """Of a stream row, on a disk of 2008."""
        return 1 / state_of("", self._master, counts, {}).rows_per_s(COSTS_OF_2008)

    def _stretch(self, rows: int | None) -> Counts:
        begin = self._now
        while (
            self._now.rows_in - begin.rows_in < self._rows_wanted(rows)
            # In `inl` rows wait for nothing but output, and are not counted as waiting.
            or 0 < self._now.waited < begin.waited + _TURNS * self._most_waiting
        ):
            self.step()
        return self._now

    def _rows_wanted(self, given: int | None) -> int:
        if given is not None:
            return max(given, 2 * self._most_waiting)
        hot_rows = self.held.get("hot_rows", 0) // self._workload.master_row_bytes
        least = _LEAST_ROWS_TO_LEARN if "hot_rows" in self.held else _LEAST_ROWS
        return max(least, _ROWS_PER_WAITING_ROW * self._most_waiting, _ROWS_PER_HOT_ROW * hot_rows)

    def step(self) -> Counts:
        """One step of the join, and all counts up to here."""
        self._see(next(self._reports))
        return self._now

    def _see(self, report: StepReport) -> None:
        now, held = self._now, report.held_bytes
        self.held = dict(held)
        arrived = held["arrivals"] / (self._workload.stream_row_bytes + WORK_BYTES_PER_ROW)
        waiting = max(0.0, self._join.pending_rows - arrived)
        self._most_waiting = max(self._most_waiting, int(waiting))
        self._now = Counts(
            rows_in=now.rows_in + report.rows_in,
            looked_at=now.rows_in + report.rows_in - arrived,
            finished=now.finished + report.emitted_rows + report.dropped_rows,
            waited=now.waited + report.waited_rows,
            hot_hits=now.hot_hits + report.hot_hits,
            output_rows=now.output_rows + report.output_rows,
            pages=self._master.pages_read,
            read_bytes=self._master.bytes_read,
            reads=self._master.reads,
            steps=now.steps + (report.pages_read > 0),
            hot_changes=self._join.hot_changes,
            reports=now.reports + 1,
            waiting_rows=now.waiting_rows + waiting,
            waiting_bytes=now.waiting_bytes + held.get("pending", held.get("waiting", 0)),
            hot_bytes=now.hot_bytes + held.get("hot_rows", held.get("resident", 0)),
        )


def state_of(algorithm: str, master: MasterData, counts: Counts, held: dict[str, int]) -> SteadyState:
    """What was counted, for one stream row.

    A stretch may begin with a full room and end with an empty one: so reads are shared out among the rows that left
    their place, and these among the rows that came.
    """
    looked_at, finished = max(1.0, counts.looked_at), max(1, counts.finished)
    miss_share = counts.waited / looked_at
    removed = counts.waited - (looked_at - counts.finished)
    share = miss_share / removed if counts.waited and removed > 0 else 1 / finished
    has_hot_rows = counts.hot_bytes > 0 or bool({"hot_rows", "resident"} & held.keys())
    disk = Work(
        master_rows=counts.pages * master.rows / max(1, master.pages),
        reads=counts.reads,
        read_bytes=counts.read_bytes,
        steps=counts.steps,
    ).scaled(share)
    stream = Work(
        stream_rows=1.0,
        hot_probes=float(has_hot_rows),
        added=miss_share,
        removed=miss_share,
        output_rows=counts.output_rows / finished,
        hot_changes=counts.hot_changes / looked_at,
    )
    return SteadyState(
        work_per_row=stream + disk,
        hot_bytes=counts.hot_bytes / max(1, counts.reports),
        waiting_bytes=counts.waiting_bytes / max(1, counts.reports),
        waiting_rows=counts.waiting_rows / max(1, counts.reports),
        hit_share=counts.hot_hits / finished,
        memory_bytes=held,
        overlapped=algorithm in OVERLAPPED,
    )


__all__ = ["OVERLAPPED", "Counting", "Counts", "VirtualRun", "run_virtual", "state_of"]
