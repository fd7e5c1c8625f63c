"""Operations that a join does, predicted by a model or counted in a run, and what they cost."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Work:
    """How often each operation is done; of a run, of a step, or of one stream row.

    A model predicts it, a run in virtual time counts it: both are turned into seconds by the same `Costs`.

    >>> step = Work(stream_rows=100, reads=1, read_bytes=16_384)
    >>> (step + step).reads, step.scaled(1 / 100).stream_rows
    (2, 1.0)
    """

    stream_rows: float = 0.0
    """Rows taken from the stream."""
    hot_probes: float = 0.0
    """Stream rows looked up among the hot rows."""
    added: float = 0.0
    """Stream rows that began to wait."""
    master_rows: float = 0.0
    """Master rows looked up among the waiting rows."""
    removed: float = 0.0
    """Waiting rows that left."""
    output_rows: float = 0.0
    hot_changes: float = 0.0
    """Hot rows put in or thrown out."""
    reads: float = 0.0
    read_bytes: float = 0.0
    steps: float = 0.0
    """Rounds of the algorithm's loop; what a round costs beside its rows."""

    def __add__(self, other: "Work") -> "Work":
        return Work(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Work)})

    def scaled(self, factor: float) -> "Work":
        return Work(**{f.name: getattr(self, f.name) * factor for f in fields(Work)})


@dataclass(frozen=True, kw_only=True)
class ReadCurve:
    """Seconds of one read by its size: straight lines between measured points, and beyond them.

    >>> disk = ReadCurve.of_disk(seek_seconds=0.01, bytes_per_s=100e6)
    >>> round(disk.seconds(1_000_000), 3)
    0.02
    """

    sizes: tuple[float, ...]
    read_seconds: tuple[float, ...]

    @classmethod
    def of_disk(cls, *, seek_seconds: float, bytes_per_s: float) -> "ReadCurve":
        return cls(sizes=(0.0, bytes_per_s), read_seconds=(seek_seconds, seek_seconds + 1.0))

    def seconds(self, size_bytes: float) -> float:
        if size_bytes <= self.sizes[-1]:
            return float(np.interp(size_bytes, self.sizes, self.read_seconds))
        slope = (self.read_seconds[-1] - self.read_seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
        return self.read_seconds[-1] + slope * (size_bytes - self.sizes[-1])


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of each operation, for one disk and one machine.

    A lookup costs more the larger its table is: `probe_seconds` is a curve over the bytes of the table.
    """

    read: ReadCurve
    probe: ReadCurve
    """Seconds of one lookup by the bytes of the table that is probed."""
    stream_row_seconds: float
    add_seconds: float
    remove_seconds: float
    output_row_seconds: float
    hot_change_seconds: float
    step_seconds: float = 0.0

    def cpu_seconds(
        self, work: Work, *, hot_bytes: float = 0.0, waiting_bytes: float = 0.0
    ) -> Mapping[str, float]:
        """By part; the sizes of the two tables say what a lookup costs."""
        return {
            "stream": work.stream_rows * self.stream_row_seconds,
            "probe_hot": work.hot_probes * self.probe.seconds(hot_bytes),
            "add": work.added * self.add_seconds,
            "probe_waiting": work.master_rows * self.probe.seconds(waiting_bytes),
            "remove": work.removed * self.remove_seconds,
            "output": work.output_rows * self.output_row_seconds,
            "hot_changes": work.hot_changes * self.hot_change_seconds,
            "steps": work.steps * self.step_seconds,
        }

    def read_seconds(self, work: Work) -> float:
        """Reads one after the other, each of the mean size."""
        return work.reads * self.read.seconds(work.read_bytes / work.reads) if work.reads else 0.0


DISK_OF_2008 = ReadCurve.of_disk(seek_seconds=0.0125, bytes_per_s=72e6)
"""7200 rpm: 8.3 ms of seek and half a turn of 4.2 ms, then about 72 MB/s: the disks of the papers' experiments."""

COSTS_OF_2008 = Costs(
    read=DISK_OF_2008,
    probe=ReadCurve(sizes=(0.0, 1e6, 64e6, 1e9), read_seconds=(50e-9, 100e-9, 300e-9, 500e-9)),
    stream_row_seconds=500e-9,
    add_seconds=500e-9,
    remove_seconds=250e-9,
    output_row_seconds=600e-9,
    hot_change_seconds=1000e-9,
    step_seconds=20e-6,
)
"""A processor of that time, rounded from the constants that the papers print in their cost sections where they do."""

COSTS_TODAY = Costs(
    read=ReadCurve(
        sizes=(4096.0, 65_536.0, 262_144.0, 1_048_576.0), read_seconds=(92e-6, 103e-6, 121e-6, 250e-6)
    ),
    probe=ReadCurve(sizes=(0.0, 1e6, 10e6, 100e6, 1e9), read_seconds=(5e-9, 7e-9, 15e-9, 30e-9, 60e-9)),
    stream_row_seconds=30e-9,
    add_seconds=80e-9,
    remove_seconds=60e-9,
    output_row_seconds=200e-9,
    hot_change_seconds=300e-9,
    step_seconds=200e-6,
)
"""One core and an NVMe disk of 2026, read past the page cache: what is assumed where no calibration was stored. Reads and
lookups are rounded from measurements on two shared cores, and a step pays 0.2 ms for an Arrow batch, however small; the
costs of a row are estimates, which a calibration replaces."""

__all__ = ["COSTS_OF_2008", "COSTS_TODAY", "DISK_OF_2008", "Costs", "ReadCurve", "Work"]
