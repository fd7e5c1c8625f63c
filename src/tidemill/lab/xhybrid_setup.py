"""The set-up of the X-HYBRIDJOIN paper, scaled down: master data by popularity, a bursty Zipf stream, its disk buffer."""

from dataclasses import dataclass
from functools import cached_property

from tidemill.join.paper_sizes import PAPER_SIZES
from tidemill.lab.data.zipf import ZipfData
from tidemill.lab.experiment import Setting
from tidemill.lab.scaled import ScaledRuns
from tidemill.lab.virtual import VirtualRun
from tidemill.model.catalog import model_of
from tidemill.model.work import COSTS_OF_2008
from tidemill.model.workload import Workload

QUICK_SCALE = 57
FULL_SCALE = 10
DISK_BUFFER_BYTES = PAPER_SIZES["x_hybrid"].disk_buffer_bytes or 0
PAPER_JOINS = ("x_hybrid", "hybrid", "reduced_mesh", "mesh")
SIZES = (
    "rows of 120 B and 20 B, Zipf 1; rows, memory, disk buffer (0.93 MB) and seeks divided by "
    f"{QUICK_SCALE} (quick) or {FULL_SCALE}; pages of 4 KiB; disk of 2008 in virtual time"
)
PAGE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class XHybridSetup:
    """Takes sizes as the paper states them."""

    setting: Setting
    scale: int
    disk_buffer_bytes: int = DISK_BUFFER_BYTES

    @classmethod
    def of(cls, setting: Setting) -> "XHybridSetup":
        return cls(setting=setting, scale=QUICK_SCALE if setting.quick else FULL_SCALE)

    @cached_property
    def runs(self) -> ScaledRuns:
        return ScaledRuns(
            read_bytes=self.disk_buffer_bytes, disk_scale=self.scale, folder=self.setting.folder
        )

    def data(self, master_rows: float) -> ZipfData:
        return ZipfData(
            master_rows=int(master_rows) // self.scale,
            exponent=1.0,
            order="popularity",
            bursty=True,
            page_bytes=PAGE_BYTES,
            seed=self.setting.seed,
        )

    def run(
        self, algorithm: str, *, master_rows: float, memory_mb: float, waiting_rows: int | None = None
    ) -> VirtualRun:
        memory_bytes = int(memory_mb * 1e6) // self.scale
        return self.runs.run(algorithm, self.data(master_rows), memory_bytes, waiting_rows=waiting_rows)


def predicted_at_full_size(algorithm: str, *, master_rows: float, memory_mb: float) -> float:
    """Rows a second that the model gives for the paper's own sizes, which no run here has checked."""
    workload = Workload(
        master_rows=int(master_rows),
        master_row_bytes=120,
        stream_row_bytes=20,
        zipf_exponent=1.0,
        popular_first=True,
    )
    model = model_of(algorithm)
    sizes = model.default_sizes(workload, int(memory_mb * 1e6))
    return model.steady_state(workload, sizes).rows_per_s(COSTS_OF_2008)


__all__ = [
    "DISK_BUFFER_BYTES",
    "PAGE_BYTES",
    "PAPER_JOINS",
    "SIZES",
    "XHybridSetup",
    "predicted_at_full_size",
]
