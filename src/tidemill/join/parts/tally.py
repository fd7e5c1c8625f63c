"""A step report while its step is under way."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from tidemill.join.protocol import StepReport


class StepTally:
    """Collects outputs, counts by the names of `StepReport`, and seconds by phase."""

    def __init__(self, rows_in: int = 0) -> None:
        self.outputs: list[pa.RecordBatch] = []
        self.counts: Counter[str] = Counter(rows_in=rows_in)
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - started

    def report(self, held_bytes: dict[str, int]) -> StepReport:
        return StepReport(
            outputs=tuple(self.outputs), seconds=dict(self.seconds), held_bytes=held_bytes, **self.counts
        )


__all__ = ["StepTally"]
