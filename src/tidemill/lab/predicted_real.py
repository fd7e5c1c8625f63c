"""Rates of joins on this machine, in turns, beside those that calibrated costs predict."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np

from tidemill.core.errors import BudgetError
from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.join.protocol import StepReport
from tidemill.lab.predicted import Compared, predicted_rate, workload_of
from tidemill.lab.virtual_rows import as_stored, open_store, stream_batches, stream_schema
from tidemill.master import MasterData
from tidemill.model.calibration import Calibration
from tidemill.model.workload import Workload

READS_IN_FLIGHT = 16
_BATCHES = 40
"""Of the stream, drawn beforehand and met again and again."""
_ROWS_TO_LEARN = 50_000
"""Of the warm-up: after 10,000 rows `cache` had not learned who should be hot, and was 36 % slower than predicted."""
_LONGEST_WARM_UP = 6.0
"""Times the seconds that are measured, for joins that take long to see so many rows."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One stream and one store for all algorithms."""

    folder: Path
    master_rows: int
    zipf: float
    memory_share: float
    seconds: float
    """That are measured, after a warm-up at least as long."""
    seed: int = 7

    @property
    def workload(self) -> Workload:
        return workload_of(self.zipf, self.master_rows)

    def store_path(self) -> Path:
        """The master data, built if need be."""
        with_cache = open_store(self.workload, self.folder)
        with_cache.close()
        return with_cache.path

    def compare(
        self, algorithms: Sequence[str], repetitions: int, calibration: Calibration
    ) -> Iterator[Compared]:
        """Each algorithm once, then each again: what disturbs the machine for a while disturbs all alike."""
        memory_bytes = int(self.workload.master_bytes * self.memory_share)
        rates: dict[str, list[float]] = {name: [] for name in algorithms}
        for _ in range(repetitions):
            for name in list(rates):
                try:
                    rates[name].append(self.rate(name, memory_bytes))
                except BudgetError:
                    del rates[name]
        master = MasterData.open(self.store_path())
        stored = as_stored(self.workload, master)
        master.close()
        for name, found in rates.items():
            median = float(np.median(found))
            yield Compared(
                algorithm=name,
                zipf=self.zipf,
                memory_share=self.memory_share,
                predicted=predicted_rate(name, stored, memory_bytes, calibration.costs_of(name)),
                measured=median,
                noise=(max(found) - min(found)) / median,
            )

    def rate(self, algorithm: str, memory_bytes: int) -> float:
        """Rows that left in a second, after a warm-up; pages come past the page cache."""
        master = MasterData.open(self.store_path(), direct=True, reads_in_flight=READS_IN_FLIGHT)
        try:
            join = make_join(
                algorithm,
                master,
                stream_schema(self.workload),
                stream_key="key",
                budget=MemoryBudget(memory_bytes),
            )
            drawn = stream_batches(self.workload, self.seed)
            batches = [next(drawn) for _ in range(_BATCHES)]
            reports = drive(join, cycle(batches))
            self._run(reports, least_rows=_ROWS_TO_LEARN)  # warm-up
            rows, seconds = self._run(reports)
            return max(1, rows) / seconds
        finally:
            master.close()

    def _run(self, reports: Iterator[StepReport], least_rows: int = 0) -> tuple[int, float]:
        """Rows that left, and seconds; the latter more than usual where that is too few rows."""
        rows, started, seconds = 0, time.perf_counter(), 0.0
        while seconds < self.seconds or (rows < least_rows and seconds < _LONGEST_WARM_UP * self.seconds):
            report = next(reports)
            rows += report.emitted_rows + report.dropped_rows
            seconds = time.perf_counter() - started
        return rows, seconds


__all__ = ["Bench"]
