"""Runs in virtual time at a fraction of a paper's sizes, with rates near those of the full sizes.

Rows and memory shrink by one factor, so what is held is the same share of the master data. The part of the master data
that one read brings shrinks too, and the seeks of the disk shrink with it: half the part for half the time brings the same
rows a second. For scans that holds within 10 %. Two things do not scale, and favour joins whose oldest row chooses a part:
parts of few pages overlap less (`hybrid` on a uniform stream gains a fifth from six pages to three), and skew, of which the
most popular hundredth of a million keys gets 68 %, that of ten thousand keys 53 %. HYBRIDJOIN's share of X-HYBRIDJOIN's
rate at 8 M rows was 68 % at a scale of 20, 74 % at 45 and 82 % at 57: a ratio of two such joins is one for its scale.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tidemill.join.hybrid import HybridJoin
from tidemill.join.mesh_sizes import MeshSizes
from tidemill.join.moij import MoijJoin
from tidemill.join.output import OutputPlan
from tidemill.join.parts.pending import WORK_BYTES_PER_ROW
from tidemill.join.parts.shared_rows import SEGMENT_BYTES
from tidemill.join.reduced_mesh import PARTITIONS
from tidemill.join.x_hybrid import XHybridJoin
from tidemill.lab.data.data_set import DataSet, open_master
from tidemill.lab.virtual import VirtualRun, run_virtual
from tidemill.lab.virtual_rows import as_stored
from tidemill.master import MasterData
from tidemill.model.catalog import model_of
from tidemill.model.work import COSTS_OF_2008, Costs, ReadCurve

_SEEK_SECONDS = COSTS_OF_2008.read.seconds(0)
_BYTES_PER_S = 1 / (COSTS_OF_2008.read.seconds(1) - _SEEK_SECONDS)

_CYCLES = 2


@dataclass(frozen=True, kw_only=True)
class ScaledRuns:
    """Joins of one paper, on its disk, all reading parts of one size."""

    read_bytes: int
    """The paper's disk buffer: what one round reads."""
    disk_scale: float
    """By which reads and seeks are smaller here."""
    folder: Path

    @cached_property
    def costs(self) -> Costs:
        """Of 2008, with shorter seeks; what a round costs beside its rows shrinks as the rounds do."""
        disk = ReadCurve.of_disk(seek_seconds=_SEEK_SECONDS / self.disk_scale, bytes_per_s=_BYTES_PER_S)
        return replace(COSTS_OF_2008, read=disk, step_seconds=COSTS_OF_2008.step_seconds / self.disk_scale)

    def run(
        self, algorithm: str, data: DataSet, memory_bytes: int, *, waiting_rows: int | None = None
    ) -> VirtualRun:
        """One join, counted.

        Args:
            algorithm: A name of the catalog of joins.
            data: What is joined.
            memory_bytes: The budget.
            waiting_rows: Most rows that wait in a join of the mesh family, where memory would hold more.
        """
        sizes = self._sizes(algorithm, data, memory_bytes)
        if waiting_rows is not None:
            sizes = replace(sizes, stream_rows_per_step=max(1, waiting_rows // sizes.queue_packets))
        # A scan is as steady as it gets after one cycle; rows for six would read the master data twenty times.
        cycles_rows = _CYCLES * sizes.window_rows if isinstance(sizes, MeshSizes) else None
        return run_virtual(
            algorithm,
            data.workload,
            memory_bytes=memory_bytes,
            sizes=sizes,
            stream_rows=cycles_rows,
            folder=self.folder,
            data=data,
        )

    def run_tuned(self, algorithm: str, data: DataSet, memory_bytes: int) -> VirtualRun:
        """One join with the sizes of its grid that its model thinks best."""
        model = model_of(algorithm)
        master = open_master(data, self.folder)
        stored = as_stored(data.workload, master)
        master.close()
        sizes = max(
            model.size_grid(stored, memory_bytes),
            key=lambda one: model.steady_state(stored, one).rows_per_s(self.costs),
        )
        return run_virtual(
            algorithm, data.workload, memory_bytes=memory_bytes, sizes=sizes, folder=self.folder, data=data
        )

    def rows_per_s(self, run: VirtualRun) -> float:
        """Measured."""
        return run.state.rows_per_s(self.costs)

    def predicted_rows_per_s(self, run: VirtualRun) -> float:
        """What the model says of the same data and sizes."""
        return model_of(run.algorithm).steady_state(run.workload, run.sizes).rows_per_s(self.costs)

    def _sizes(self, algorithm: str, data: DataSet, memory_bytes: int) -> Any:
        """The join's own split, with as many pages a round as the paper's disk buffer has; None for the join's own."""
        if algorithm not in _SPLITS:
            return None
        master = open_master(data, self.folder)
        plan = OutputPlan.of(data.stream_schema, master.schema, stream_key=data.key, master_key=master.key)
        pages = max(1, round(self.read_bytes / self.disk_scale / master.longest_page_bytes))
        sizes = _SPLITS[algorithm](master, plan, memory_bytes, pages)
        master.close()
        return sizes


def most_waiting_rows(run: VirtualRun) -> int:
    """That `hybrid` or `x_hybrid` can hold."""
    row_bytes = 2 * run.workload.stream_row_bytes + WORK_BYTES_PER_ROW
    return int(run.sizes.pending_bytes // row_bytes)


def _hybrid(master: MasterData, plan: OutputPlan, memory_bytes: int, pages: int) -> Any:
    sizes = HybridJoin.sizes_for(master, plan, memory_bytes)
    buffer = 2 * pages * master.longest_page_bytes
    freed = sizes.disk_buffer_bytes - buffer
    return replace(
        sizes, disk_buffer_bytes=buffer, pages_per_step=pages, pending_bytes=sizes.pending_bytes + freed
    )


def _x_hybrid(master: MasterData, plan: OutputPlan, memory_bytes: int, pages: int) -> Any:
    sizes = XHybridJoin.sizes_for(master, plan, memory_bytes)
    buffer = 2 * pages * master.longest_page_bytes
    freed = sizes.disk_buffer_bytes + sizes.resident_bytes - 2 * buffer
    return replace(
        sizes,
        disk_buffer_bytes=buffer,
        resident_bytes=buffer,
        pages_per_step=pages,
        pending_bytes=sizes.pending_bytes + freed,
    )


def _mesh(master: MasterData, plan: OutputPlan, memory_bytes: int, pages: int) -> Any:
    return _swept(master, plan, memory_bytes, pages, queue_packets=None)


def _reduced_mesh(master: MasterData, plan: OutputPlan, memory_bytes: int, pages: int) -> Any:
    return _swept(master, plan, memory_bytes, pages, queue_packets=PARTITIONS)


def _swept(
    master: MasterData, plan: OutputPlan, memory_bytes: int, pages: int, *, queue_packets: int | None
) -> Any:
    return MeshSizes.from_budget(
        memory_bytes,
        plan.stream_row_bytes,
        master.row_bytes,
        master.index_bytes,
        master_pages=master.pages,
        longest_page_bytes=master.longest_page_bytes,
        queue_packets=queue_packets,
        master_pages_per_step=pages,
    )


def _moij(master: MasterData, plan: OutputPlan, memory_bytes: int, pages: int) -> Any:
    """Segments of so many pages; how many are read together stays, each is a round of its own."""
    sizes = MoijJoin.sizes_for(master, plan, memory_bytes)
    index = master.index_bytes + -(-master.pages // pages) * SEGMENT_BYTES
    read_pages = max(pages, sizes.read_pages // pages * pages)
    return replace(
        sizes,
        segment_pages=pages,
        read_pages=read_pages,
        index_bytes=index,
        pending_bytes=sizes.pending_bytes + sizes.index_bytes - index,
    )


_Split = Callable[[MasterData, OutputPlan, int, int], Any]
# `cache` reads one page a round whatever its sizes: experiments with it take pages of the size of a read.
_SPLITS: dict[str, _Split] = {
    "hybrid": _hybrid,
    "x_hybrid": _x_hybrid,
    "mesh": _mesh,
    "reduced_mesh": _reduced_mesh,
    "moij": _moij,
}

__all__ = ["ScaledRuns", "most_waiting_rows"]
