"""What operations cost on this machine and on this store, in under a minute."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from tidemill.core.errors import SpecError
from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.output import OutputPlan
from tidemill.lab.calibrate_joins import overheads
from tidemill.lab.calibrate_kernels import BATCH_ROWS, RowSeconds, Sample, probe_curve, seconds_of
from tidemill.lab.device import measure_device
from tidemill.lab.master_rows import master_reader
from tidemill.master import MasterData
from tidemill.model.calibration import Calibration, Family
from tidemill.model.catalog import MODELLED
from tidemill.model.work import Costs, ReadCurve

READS_IN_FLIGHT = 16
RUN_PAGES = (1, 4, 16, 64)
PLACES_A_REQUEST = 48
READS_UNDER_WAY = 3
"""One that is matched and two behind it, as `tide` has them."""
_MADE_ROWS = 400_000
_STEP_MEMORY_BYTES = 32 * 2**20

Progress = Callable[[str, float], None]
"""Takes what is being done, and how much of it is done, 0 … 1."""


def calibrate(store: Path, *, progress: Progress = lambda _doing, _done: None) -> Calibration:
    """The costs of this machine for joins on this store, read past the page cache."""
    master = MasterData.open(store, direct=True, reads_in_flight=READS_IN_FLIGHT)
    try:
        if not master.rows:
            raise SpecError(
                f"{store} has no rows: nothing can be timed on it",
                code="empty_store",
                next_move="give a store with rows, or none for one made for the purpose",
            )
        progress("the disk", 0.0)
        longest = max(master.manifest.files, key=lambda file: file.bytes)
        device = measure_device(master.path / longest.name)
        progress("reads of the store", 0.1)
        reads = _Reads(master)
        curves: dict[Family, ReadCurve] = {
            "scan": reads.curve(reads.scan),
            "lookup": reads.curve(reads.lookup),
            "rows": reads.curve(reads.rows),
        }
        progress("lookups", 0.3)
        probe = probe_curve()
        progress("rows", 0.4)
        sample = sample_of(master)
        columns, rows = sample.of_columns(), sample.of_rows()
        progress("steps", 0.5)
        steps = {name: _step_seconds(master, sample, name) for name in ("inl", "tide")}
        found = Calibration(
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            store=master.identity,
            master_row_bytes=master.row_bytes,
            page_bytes=master.longest_page_bytes,
            by_family={
                "scan": _costs(curves["scan"], probe, columns, steps["inl"]),
                "lookup": _costs(curves["lookup"], probe, columns, steps["inl"]),
                "rows": _costs(curves["rows"], probe, rows, steps["tide"]),
            },
            device_bytes_per_s=device.by_in_flight,
        )
        progress("joins", 0.6)
        known = {name: found.costs_of(name) for name in MODELLED}
        return replace(found, by_join=dict(overheads(master, known)))
    finally:
        master.close()


def calibrate_anywhere(folder: Path, *, progress: Progress = lambda _doing, _done: None) -> Calibration:
    """The same on master data made for the purpose in a folder of that disk: rows of 119 bytes, 48 MB."""
    with TemporaryDirectory(dir=folder, prefix=".calibrate-") as made:
        progress("master data", 0.0)
        store = Path(made) / "store"
        MasterData.build(master_reader(_MADE_ROWS), key="key", path=store).close()
        return calibrate(store, progress=progress)


def _costs(read: ReadCurve, probe: ReadCurve, rows: RowSeconds, step_seconds: float) -> Costs:
    return Costs(
        read=read,
        probe=probe,
        stream_row_seconds=rows.stream,
        add_seconds=rows.add,
        remove_seconds=rows.remove,
        output_row_seconds=rows.output,
        hot_change_seconds=rows.hot_change,
        step_seconds=step_seconds,
    )


@dataclass
class _Reads:
    """Seconds of one read of so many neighbouring pages, at places of no order."""

    master: MasterData

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(7)

    def curve(self, seconds: Callable[[int], float]) -> ReadCurve:
        pages = [count for count in RUN_PAGES if count <= self.master.pages]
        sizes = [float(count * self.master.longest_page_bytes) for count in pages]
        found = np.maximum.accumulate([seconds(count) for count in pages]).tolist()
        if len(pages) == 1:  # a straight line needs two points
            sizes, found = [0.0, *sizes], [0.0, *found]
        return ReadCurve(sizes=tuple(sizes), read_seconds=tuple(found))

    def _place(self, pages: int) -> int:
        return int(self._random.integers(0, self.master.pages - pages + 1))

    def scan(self, pages: int) -> float:
        """One run of pages a request, made into columns."""

        def read() -> None:
            first = self._place(pages)
            self.master.read_batch(np.arange(first, first + pages))

        return seconds_of(read)

    def lookup(self, pages: int) -> float:
        """Many runs a request, made into columns."""
        places = max(1, PLACES_A_REQUEST // pages)

        def read() -> None:
            first = np.sort(self._random.integers(0, self.master.pages - pages + 1, places))
            self.master.read_batch((first[:, None] + np.arange(pages)).ravel())

        return seconds_of(read) / places

    def rows(self, pages: int) -> float:
        """Runs with others under way; rows stay rows."""

        def read() -> None:
            under_way = [self.master.begin_read(self._place(pages), pages) for _ in range(READS_UNDER_WAY)]
            for _ in range(16):
                under_way.pop(0).result()
                under_way.append(self.master.begin_read(self._place(pages), pages))
            for reading in under_way:
                reading.result()

        return seconds_of(read) / (16 + READS_UNDER_WAY)


def sample_of(master: MasterData) -> Sample:
    """Stream rows with the store's own keys and a number each, and the pages in which they lie."""
    pages = master.read_batch(np.arange(min(master.pages, 64)))
    rows = np.random.default_rng(7).integers(0, pages.num_rows, BATCH_ROWS)
    keys = pages.select(list(master.key_columns)).take(rows)
    stream = pa.RecordBatch.from_arrays(
        [*keys.columns, pa.array(np.arange(BATCH_ROWS))],
        [*(f"of_{name}" for name in keys.schema.names), "event"],
    )
    plan = OutputPlan.of(
        stream.schema,
        master.schema,
        stream_key=stream.schema.names[:-1],
        master_key=master.key,
    )
    return Sample(master, plan, stream, pages, rows)


def _step_seconds(master: MasterData, sample: Sample, name: str) -> float:
    """Of a step for one row beside the read of its page."""
    join = make_join(
        name,
        master,
        sample.stream.schema,
        stream_key=list(sample.plan.stream_key.columns),
        budget=MemoryBudget(_STEP_MEMORY_BYTES + 2 * master.index_bytes),
    )
    rows = iter(range(10**9))

    def step() -> None:
        join.offer(sample.stream.slice(next(rows) % sample.stream.num_rows, 1))
        while join.pending_rows:
            join.step()

    pages = iter(range(10**9))

    def read() -> None:
        master.read_rows(next(pages) % master.pages, 1)

    return max(0.0, seconds_of(step) - seconds_of(read))


__all__ = ["calibrate", "calibrate_anywhere", "sample_of"]
