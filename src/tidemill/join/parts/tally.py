"""A step report while its step is under way."""

import time
from collections import Counter, defaultdict

import pyarrow as pa

from tidemill.join.protocol import StepReport


class _Timer:
    """A third of the time that a generator takes, which tells when steps take a millisecond."""

    __slots__ = ("_phase", "_seconds", "_started")

    def __init__(self, seconds: defaultdict[str, float], phase: str) -> None:
        self._seconds, self._phase = seconds, phase

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._seconds[self._phase] += time.perf_counter() - self._started


class StepTally:
    """Collects outputs, counts by the names of `StepReport`, and seconds by phase."""

    def __init__(self, rows_in: int = 0) -> None:
        self.outputs: list[pa.RecordBatch] = []
        self.counts: Counter[str] = Counter(rows_in=rows_in)
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def timed(self, phase: str) -> "_Timer":
        """Adds the seconds of a block that ends well."""
        return _Timer(self.seconds, phase)

    def report(self, held_bytes: dict[str, int]) -> StepReport:
        return StepReport(
            outputs=tuple(self.outputs), seconds=dict(self.seconds), held_bytes=held_bytes, **self.counts
        )


__all__ = ["StepTally"]
