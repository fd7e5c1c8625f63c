"""A join by region whose hot and waiting rows share memory, which moves to where it saves more."""

import numpy as np

from tidemill.core.freed import give_back_heap
from tidemill.join.parts.hot_cache import HotCache
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.region_join import RegionJoin
from tidemill.join.parts.row_cache import HOT_ENTRY_BYTES, RowCache
from tidemill.join.parts.set_cache import SET_ENTRY_BYTES, SetCache
from tidemill.join.parts.split import MET_FOR_MORE_ROOM, Split
from tidemill.master import MasterData
from tidemill.master.protocol import Master


def has_single_rows(master: Master) -> bool:
    """Whether each code is known to have one row at most."""
    return isinstance(master, MasterData) and master.manifest.most_rows_of_a_key <= 1


class SplitJoin(RegionJoin):
    """The memory's side of `tide`.

    What is counted goes to a `Split`. When that wants another share, no row is looked at until those that wait find room
    in what will be left; then both are resized where they are. Rows whose reads are under way stay in it.
    """

    def _begin_split(self, hot: HotCache | None) -> None:
        """Start with hot rows of its own, or with those that are kept and paid for elsewhere."""
        self._resize_to: float | None = None
        self._counted = 0  # misses in the sketch
        # Held by hot rows: they only make the join faster.
        self._owns_hot = hot is None
        self._hot: HotCache = hot or self._no_hot_rows()
        entry_bytes = SET_ENTRY_BYTES if isinstance(self._hot, SetCache) else HOT_ENTRY_BYTES
        self._split = Split(
            self.sizes.hot_share,
            keys=self._master.rows,
            hot_row_bytes=self._hot_row_bytes + entry_bytes,
            costs=self.sizes.miss_costs,
        )

    @property
    def _hot_row_bytes(self) -> int:
        return self._master.stored_row_bytes

    def _no_hot_rows(self) -> RowCache | SetCache:
        size_bytes, most_bytes = (
            self.sizes.hot_rows_bytes,
            self.sizes.hot_rows_bytes + self.sizes.waiting_bytes,
        )
        keeps_rows = bool(self.plan.master_columns)
        if keeps_rows and has_single_rows(self._master) and SetCache.may_hold(self._layout):
            return SetCache(size_bytes, self._layout, most_bytes=most_bytes)
        row_bytes = self._hot_row_bytes
        return RowCache(size_bytes, row_bytes, self._layout, keeps_rows=keeps_rows, most_bytes=most_bytes)

    def _look_at_split(self) -> None:
        """Wait for room if hot and waiting rows should share memory otherwise."""
        may_move = self._owns_hot and self.sizes.moves_memory
        if may_move and self._split.is_due(self._room.most_rows):
            self._resize_to = self._split.look(
                both_bytes=self.sizes.hot_rows_bytes + self.sizes.waiting_bytes,
                hot_rows=self._hot.entries,
                most_waiting=self._room.most_rows,
                counted_rows=self._counted,
                is_hot_full=self._hot.has_been_full,
            )

    def _may_resize(self, hot_share: float) -> bool:
        """Whether those that wait would find room; where their places cannot change, whether nobody does."""
        if not self._room.can_resize:
            return not self._room.waiting_rows
        return self._room.may_resize(self.sizes.with_hot_share(hot_share).waiting_bytes)

    def _resize(self, hot_share: float) -> None:
        """Share out anew what hot and waiting rows hold."""
        grows = hot_share > self.sizes.hot_share
        self.sizes = self.sizes.with_hot_share(hot_share)
        self._split.share, self._resize_to = hot_share, None
        for name in ("hot_rows", "waiting"):
            self.budget.release(name)
        for name in ("hot_rows", "waiting"):
            self.budget.reserve(name, getattr(self.sizes, f"{name}_bytes"))
        # First the one that gives memory, then the one that takes it.
        for resize in (
            (self._resize_room, self._resize_hot) if grows else (self._resize_hot, self._resize_room)
        ):
            resize()
        give_back_heap()
        if grows and isinstance(self._hot, RowCache | SetCache):
            self._hot.least_met = min(self._hot.least_met, MET_FOR_MORE_ROOM)

    def _resize_hot(self) -> None:
        if isinstance(self._hot, RowCache | SetCache):
            self._hot.resize(self.sizes.hot_rows_bytes)

    def _resize_room(self) -> None:
        if not self._room.can_resize:
            del self._room  # before the new one, which may take its place in memory
            self._room = self._no_waiting_rows()
            return
        moved = self._room.resize(self.sizes.waiting_bytes)
        for service in self._services:
            service.slots[:] = moved.of(service.slots)
        if self._given:
            slots = moved.of(np.array(list(self._given), dtype=np.int64)).tolist()
            self._given = dict(zip(slots, self._given.values(), strict=True))

    def _began(self, regions: int, rows: int, pages: Int64s) -> None:
        period = self._split.period
        if not period.services:  # while the room fills nothing is learned
            period.rows = period.misses = period.met_again = 0
        period.services += regions
        period.served_rows += rows
        period.bytes_read += self._master.rows_buffer_bytes(pages)


__all__ = ["SplitJoin", "has_single_rows"]
