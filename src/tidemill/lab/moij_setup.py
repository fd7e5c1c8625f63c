"""The set-up of the MOIJ paper, scaled down: MOIJ and CACHEJOIN on the same data, reading segments of one size."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tidemill.join.paper_sizes import PAPER_SIZES
from tidemill.lab.data.data_set import DataSet
from tidemill.lab.data.zipf import ZipfData
from tidemill.lab.experiment import Curve, Figure, Setting
from tidemill.lab.scaled import ScaledRuns
from tidemill.lab.virtual import VirtualRun

QUICK_SCALE = 200
FULL_SCALE = 40
PAGE_BYTES = 32 * 1024
"""A segment: `cache` reads single pages."""
SEGMENT_BYTES = PAPER_SIZES["moij"].disk_buffer_bytes or 0
MASTER_ROW_BYTES = 120
SIZES = (
    f"rows of 120 B and 20 B; rows and memory divided by {QUICK_SCALE} (quick) or {FULL_SCALE}, segments (0.1 MB) and seeks "
    "by 3, a page of 32 KiB each; disk of 2008 in virtual time"
)
SOURCE = "Naeem et al., Big Data Velocity Management, IEEE Access 2020"
WHY_FURTHER = (
    "our CACHEJOIN splits its memory once: a third is for hot rows, of which two generations are held, and a fifth for "
    "waiting rows of 96 bytes; MOIJ keeps waiting rows in cells of half the size and gives them what hot rows do not need"
)
_NEAR = 0.3


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The same data and memory, once for each join."""

    moij: VirtualRun
    cache: VirtualRun
    moij_rows_per_s: float
    cache_rows_per_s: float

    @property
    def ratio(self) -> float:
        return self.moij_rows_per_s / self.cache_rows_per_s


@dataclass(frozen=True, kw_only=True)
class MoijSetup:
    """Takes rows as the paper states them, memory in bytes of the data here."""

    setting: Setting
    scale: int
    page_bytes: int = PAGE_BYTES

    @classmethod
    def of(cls, setting: Setting) -> "MoijSetup":
        return cls(setting=setting, scale=QUICK_SCALE if setting.quick else FULL_SCALE)

    @cached_property
    def runs(self) -> ScaledRuns:
        return ScaledRuns(
            read_bytes=SEGMENT_BYTES, disk_scale=SEGMENT_BYTES / self.page_bytes, folder=self.setting.folder
        )

    def data(self, master_rows: float, exponent: float = 1.0) -> ZipfData:
        rows = int(master_rows) // self.scale
        return ZipfData(
            master_rows=rows, exponent=exponent, page_bytes=self.page_bytes, seed=self.setting.seed
        )

    def rows_per_s(self, algorithm: str, data: DataSet, memory_bytes: int) -> float:
        return self.runs.rows_per_s(self.runs.run(algorithm, data, memory_bytes))

    def pair(self, data: DataSet, memory_bytes: int, *, cache_data: DataSet | None = None) -> Pair:
        """Both joins; CACHEJOIN on data of its own where it cannot take the same."""
        moij = self.runs.run("moij", data, memory_bytes)
        cache = self.runs.run("cache", cache_data or data, memory_bytes)
        return Pair(
            moij=moij,
            cache=cache,
            moij_rows_per_s=self.runs.rows_per_s(moij),
            cache_rows_per_s=self.runs.rows_per_s(cache),
        )


def is_near(measured: float, claimed: float) -> bool:
    """Within 30 %, about what can be read from the papers' figures and words."""
    return abs(measured / claimed - 1) <= _NEAR


def pairs_figure(title: str, x_label: str, x: list[float], pairs: list[Pair], **more: Any) -> Figure:
    curves = [
        Curve(label="MOIJ", x=x, y=[pair.moij_rows_per_s for pair in pairs]),
        Curve(label="CACHEJOIN", x=x, y=[pair.cache_rows_per_s for pair in pairs]),
    ]
    figure = Figure(title=title, x_label=x_label, y_label="rows/s", curves=curves)
    return replace(figure, **more)


def pairs_values(x: list[float], pairs: list[Pair]) -> dict[str, float]:
    """All that was measured, by point of the figure."""
    values = {}
    for at, pair in zip(x, pairs, strict=True):
        values[f"moij at {at:g}"] = pair.moij_rows_per_s
        values[f"cache at {at:g}"] = pair.cache_rows_per_s
    return values


__all__ = [
    "MASTER_ROW_BYTES",
    "PAGE_BYTES",
    "SIZES",
    "SOURCE",
    "WHY_FURTHER",
    "MoijSetup",
    "Pair",
    "is_near",
    "pairs_figure",
    "pairs_values",
]
