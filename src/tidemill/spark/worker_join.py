"""One open join of a Python worker, with its share of the host's memory and the hot rows that all workers share."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tidemill.core.errors import BudgetError, StoreError, TidemillError
from tidemill.core.memory import MemoryBudget
from tidemill.core.units import format_bytes
from tidemill.join.catalog import JOINS
from tidemill.join.output import OutputPlan
from tidemill.join.parts.frequency import LEAST_BYTES as LEAST_SKETCH_BYTES
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.set_cache import SetCache
from tidemill.join.parts.shared_cache import SharedRowCache
from tidemill.join.parts.shared_file import identity_number
from tidemill.join.parts.shared_sets import SharedSetCache
from tidemill.join.parts.split_join import has_single_rows
from tidemill.join.protocol import SemiStreamJoin
from tidemill.join.tide import TideJoin
from tidemill.join.tide_sizes import TideSizes
from tidemill.master import MasterData
from tidemill.master.board import Board
from tidemill.spark.hot_folder import board_file, forget_unused, hot_file, mark_used
from tidemill.spark.lookup import HostedLookup
from tidemill.spark.memory_sample import note_baseline
from tidemill.spark.warm_start import HotCodes, hint_name, warm_up

_TRANSPORT_SHARES = 0.1, 0.2
"""Of a host's budget, at least and at most: batches on their way from and to the JVM, and what Arrow's allocator keeps of them."""
_TRANSPORT_BYTES = 6_400_000
"""That they take, however large the budget is."""
HOT_SHARE = 0.6
"""Of what `tide` has for hot and waiting rows. Waiting rows are those of one batch, so the hot ones get more."""
_READS_IN_FLIGHT = 4
_BOARD_BYTES = 6 * 2**20
"""Of each worker: what it has read stays there for some milliseconds, and longer reads are less work."""
_LEAST_SLOTS = 8
"""Of each worker, for regions that others may need."""
_REGIONS_PER_READ = 4
_LARGE_BYTES = 64 * 2**20
"""Of each worker: with so much, reads may be longer and more of them under way."""
_READS_PER_STEP = 64
"""A step ends when its output is full: a batch of few rows costs the JVM as much as one of many."""
_MOST_WAITING_BYTES = 16 * 2**20
"""Of each worker: half a million rows, as many as miss of several millions. More would wait for nothing but room."""
_ARRIVALS_BYTES = 2**20
_OUTPUT_BYTES = 2**21
_LOG = logging.getLogger("tidemill.spark")
_read_through_the_cache: set[Path] = set()
"""Stores of which this process has told so."""


@dataclass(frozen=True)
class HostShares:
    """How `tide` divides the memory of a host: one file of hot rows, and a part for each worker."""

    hot_bytes: int
    board_bytes: int
    """For pages that one worker has read and another needs."""
    worker: TideSizes

    @classmethod
    def of(cls, master: MasterData, plan: OutputPlan, memory_bytes: int, workers: int) -> "HostShares":
        """Small parts for what only passes through a worker: there are several, and hot rows serve them all."""
        sizes = TideJoin.sizes_for(master, plan, join_bytes(memory_bytes, workers))
        read_bytes = sizes.disk_buffer_bytes // (1 + sizes.reads_ahead)
        is_large = sizes.total_bytes >= _LARGE_BYTES
        regions = sizes.regions_per_read if is_large else min(_REGIONS_PER_READ, sizes.regions_per_read)
        reads_ahead = _READS_IN_FLIGHT - 1 if is_large else sizes.reads_ahead
        slim = replace(
            sizes,
            arrivals_bytes=min(sizes.arrivals_bytes, _ARRIVALS_BYTES),
            sketch_bytes=max(LEAST_SKETCH_BYTES, sizes.sketch_bytes // 2),
            regions_per_read=regions,
            reads_per_step=_READS_PER_STEP,
            reads_ahead=reads_ahead,
            disk_buffer_bytes=(1 + reads_ahead) * -(-read_bytes * regions // sizes.regions_per_read),
            output_bytes=min(sizes.output_bytes, _OUTPUT_BYTES),
        )
        both = sizes.total_bytes - slim.total_bytes + slim.hot_rows_bytes + slim.waiting_bytes
        board = min(_BOARD_BYTES, both // 2) if workers > 1 else 0
        if board < _LEAST_SLOTS * slim.region_pages * master.longest_page_bytes:
            board = 0  # reads of one or two regions each would cost more than they share
        waiting = min(int((both - board) * (1 - HOT_SHARE)), _MOST_WAITING_BYTES)
        hot = max(64, both - board - waiting)
        worker = replace(slim, hot_rows_bytes=64, waiting_bytes=both - board - hot)
        return cls(workers * (hot - 64), workers * board, worker)


def join_bytes(memory_bytes: int, workers: int) -> int:
    """What the join of one worker may reserve, its part of the hot rows among it."""
    least, most = (share * memory_bytes for share in _TRANSPORT_SHARES)
    return int((memory_bytes - max(least, min(most, _TRANSPORT_BYTES))) / workers)


def check_budget(master: MasterData, lookup: HostedLookup, workers: int) -> None:
    """Refuse a budget that the workers of a host could not work with, before anything starts."""
    kind: Any = JOINS[lookup.algorithm]
    try:
        kind.sizes_for(master, lookup.plan, join_bytes(lookup.memory_bytes, workers))
    except BudgetError as error:
        raise refused_for_host(error, lookup.name, lookup.memory_bytes, workers) from error


def refused_for_host(refusal: BudgetError, name: str, memory_bytes: int, workers: int) -> BudgetError:
    """What the refusal of one worker's join means for the memory of the host."""
    needed, (least_share, most_share) = refusal.least_bytes * workers, _TRANSPORT_SHARES
    least = max(needed / (1 - least_share), min(needed / (1 - most_share), needed + _TRANSPORT_BYTES))
    return BudgetError(
        f"{format_bytes(memory_bytes)} for {name} is too little for {workers} workers of a host",
        code="budget_too_small",
        next_move=f"give at least {format_bytes(math.ceil(least / 1e5) * 1e5)}",
        total_bytes=memory_bytes,
        least_bytes=math.ceil(least),
    )


def opened_master(path: Path, version: int) -> MasterData:
    """The store, read past the page cache where its file system can do that."""
    try:
        return MasterData.open(path, version, direct=True, reads_in_flight=_READS_IN_FLIGHT)
    except StoreError as refusal:
        if refusal.code != "no_direct_io":
            raise
    if path not in _read_through_the_cache:
        _read_through_the_cache.add(path)
        _LOG.warning(
            "the file system of %s has no direct I/O: pages go through the page cache, whose memory is in no budget",
            path,
        )
    return MasterData.open(path, version, direct=False, reads_in_flight=_READS_IN_FLIGHT)


class WorkerJoin:
    """The join of this process with one master table, in one version.

    Args:
        lookup: What to join with.
        version: Of the master data.
        workers: Processes of this host that share the memory.
        folder: For the hot rows.
        owner: Who shares hot rows: the tasks of a query, or those that use a version.
    """

    def __init__(self, lookup: HostedLookup, version: int, workers: int, folder: Path, *, owner: str) -> None:
        note_baseline(folder)
        self.as_of = lookup.as_of
        self.master = opened_master(lookup.master_path, version)
        budget = MemoryBudget(join_bytes(lookup.memory_bytes, workers))
        self._hot: SharedRowCache | SharedSetCache | None = None
        self._board: Board | None = None
        self._told = HotCodes(lookup.master_path, hint_name(f"{owner} {lookup.name}"))
        self._files: tuple[Path, ...] = ()
        self._reads_bytes = 0
        self._has_begun = False
        self.join: SemiStreamJoin
        if lookup.algorithm == TideJoin.name:
            shares = HostShares.of(self.master, lookup.plan, lookup.memory_bytes, workers)
            packing = self.master.packing
            shape = f"{self.master.schema} {packing.form} {packing.has_nulls}"
            setting = f"{owner} {shape} {shares.hot_bytes} {lookup.master_path}"
            file = hot_file(folder, setting)
            self._hot = self._open_hot_rows(file, shares.hot_bytes, setting)
            posted = board_file(folder, setting, f"{self.master.identity} {shares}")
            self._board = self._open_board(posted, shares, workers) if shares.board_bytes else None
            self._files = (file, posted)
            self._reads_bytes = shares.worker.disk_buffer_bytes
            forget_unused(folder)
            self.join = TideJoin(
                self.master, lookup.plan, budget, sizes=shares.worker, hot=self._hot, board=self._board
            )
        else:
            kind: Any = JOINS[lookup.algorithm]
            options = {} if lookup.condition is None else {"condition": lookup.condition}
            self.join = kind(self.master, lookup.plan, budget, **options)

    def _open_hot_rows(self, file: Path, size_bytes: int, setting: str) -> "SharedRowCache | SharedSetCache":
        layout = self.master.layout
        if has_single_rows(self.master) and SetCache.may_hold(layout):
            return SharedSetCache(file, size_bytes, layout, setting)
        return SharedRowCache(file, size_bytes, self.master.stored_row_bytes, layout, setting)

    def _open_board(self, file: Path, shares: HostShares, workers: int) -> Board:
        region_pages = shares.worker.region_pages
        # A region is longer where rows of one code begin in its last page and end in the next.
        longest_pages = region_pages + int(bool(self.master.continues.any()))
        return Board(
            file,
            regions=-(-self.master.pages // region_pages),
            seats=workers,
            size_bytes=shares.board_bytes,
            region_bytes=longest_pages * self.master.longest_page_bytes,
        )

    @property
    def hot_bytes(self) -> int:
        """Held by the hot rows that the workers of the host share."""
        return self._hot.bytes_held if self._hot is not None else 0

    @contextmanager
    def hot_rows_in_use(self) -> Iterator[None]:
        """Inside, the shared hot rows are those of this join's version."""
        if self._hot is None:
            yield
            return
        mark_used(*self._files)
        identity = identity_number(self.master.identity)
        with self._hot.used_for(self.master.version, identity, self._changed_codes) as is_mine:
            if not is_mine:
                raise StoreError(
                    "the hot rows of this join are in use for another version of its master data",
                    code="hot_rows_in_use",
                    next_move="run the task again; two queries on one master need folders of their own (hot_rows=)",
                    retryable=True,
                )
            if not (self._has_begun and self._hot.entries):
                self._begin_where_others_are(self._hot)
            with self._board.taken_seat() if self._board is not None else nullcontext():
                yield
            self._told.tell(self._hot)

    def _begin_where_others_are(self, hot: SharedRowCache | SharedSetCache) -> None:
        """Read the rows that were hot when somebody last told; one worker of the host does it, the others wait for them."""
        with hot.in_turn("warming"):
            codes = self._told.read() if not hot.entries else None
            if codes is not None:
                warm_up(hot, self.master, codes, self._reads_bytes)  # the join reads nothing meanwhile
        self._has_begun = True

    def _changed_codes(self, version: int, identity: int) -> Int64s | None:
        """Codes that changed since another version; None if that is not known or was not of this store."""
        try:
            before = MasterData.open(self.master.path, version)
        except TidemillError:  # expired, or another store lay here
            return None
        return self.master.changed_codes(version) if identity_number(before.identity) == identity else None


__all__ = ["HostShares", "WorkerJoin", "check_budget", "join_bytes", "refused_for_host"]
