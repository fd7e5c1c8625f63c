"""Stream rows that wait for the disk, side by side with those that the same read will serve."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.errors import BudgetError
from tidemill.core.recycled import Recycled
from tidemill.core.units import format_bytes
from tidemill.join.parts import sifting_kernels
from tidemill.join.parts import waiting_kernels as kernels
from tidemill.join.parts.kernels import Int32s, Int64s
from tidemill.master.rows import RowLayout, UInt8s

_CODE_BYTES = 8
_SLOT_BYTES = 4 + 4
_OPEN_SLOT_BYTES = _SLOT_BYTES + _CODE_BYTES + 8
_MOVED_AT_A_TIME = 65_536
REGION_BYTES = 4 + 4 + 8


class Moved(NamedTuple):
    """Where rows of the last slots of a room are now."""

    first: int
    """Slot from which on rows have moved."""
    to: Int32s
    """Where those of this slot, the next one and so on are now."""

    def of(self, slots: "npt.NDArray[Any]") -> "npt.NDArray[Any]":
        """The slots now; negative ones name none.

        Slots that were taken off the lists still name those that followed, perhaps of a larger room.
        """
        if not len(self.to):
            return slots
        number = np.clip(slots - self.first, 0, len(self.to) - 1)
        return np.where(slots >= self.first, self.to[number], slots)


class WaitingRoom:
    """Rows by region of the disk, in a fixed number of bytes.

    ```
    region   0     1     2            each with the number of its rows and the time of its oldest
             │     │     └▶ row ▶ row ▶ row
             │     └▶ ·
             └▶ row ▶ row
    ```

    Args:
        size_bytes: For rows and slots; regions are counted with the index.
        layout: Of stream rows.
        regions: Number of regions.
        row_bytes: Expected size of a row, where that is open.
        code_column: The column of 64 bits that is the code itself, if there is one: in rows of fixed length it is then
            not kept a second time.
    """

    def __init__(
        self, size_bytes: int, layout: RowLayout, regions: int, row_bytes: int, code_column: str | None = None
    ) -> None:
        self.layout = layout
        self._stride = layout.least_row_bytes if layout.last_open_offset < 0 else 0
        has_code = bool(self._stride) and code_column is not None
        self._slot_bytes = _SLOT_BYTES + (0 if has_code else _CODE_BYTES)
        if self._stride:
            self.most_rows = self.rows_of(size_bytes)
            arena_bytes = self.most_rows * self._stride
        else:
            each = max(row_bytes, layout.least_row_bytes) + kernels.HEADER_BYTES + _OPEN_SLOT_BYTES
            self.most_rows = max(1, size_bytes // each)
            arena_bytes = size_bytes - self.most_rows * _OPEN_SLOT_BYTES
        self._words = np.zeros(max(0, arena_bytes) // 8, dtype=np.uint64)
        self.rows: UInt8s = self._words.view(np.uint8)
        # Word of the first code, and words from one to the next.
        self._code_at = (0, 1)
        if has_code and code_column is not None:
            offset = layout.slots[layout.schema.names.index(code_column)].offset
            self._code_at = (offset >> 3, self._stride >> 3)
            self._code = self.rows.view(np.int64)
        else:
            self._code = np.zeros(self.most_rows, dtype=np.int64)
        self._next = np.zeros(self.most_rows, dtype=np.int32)
        self._free = np.arange(self.most_rows - 1, -1, -1, dtype=np.int32)
        self._at = np.zeros(0 if self._stride else self.most_rows, dtype=np.int64)
        self._head = np.full(regions, -1, dtype=np.int32)
        self.count = np.zeros(regions, dtype=np.int32)
        self.since = np.zeros(regions, dtype=np.int64)
        self._state = np.zeros(4, dtype=np.int64)
        self._offsets = np.array([slot.offset for slot in layout.slots], dtype=np.int64)
        self._template: UInt8s = np.zeros(self._stride, dtype=np.uint8)
        for slot in layout.slots if self._stride else ():  # none is NULL
            self._template[slot.validity_place] |= 1 << slot.validity_bit

    @property
    def waiting_rows(self) -> int:
        return int(self._state[kernels.ROWS])

    @property
    def free_rows(self) -> int:
        return self.most_rows - self.waiting_rows

    @property
    def bytes_held(self) -> int:
        if self._stride:
            return self.waiting_rows * (self._stride + self._slot_bytes)
        return int(self._state[kernels.END]) + self.waiting_rows * _OPEN_SLOT_BYTES

    def fits(self, rows: int, row_bytes: int) -> bool:
        """Whether so many rows, of so many bytes in all, could wait too."""
        if self._stride:
            return rows <= self.free_rows
        return rows <= self.free_rows and rows * kernels.HEADER_BYTES + row_bytes <= self._free_bytes

    @property
    def _free_bytes(self) -> int:
        return len(self.rows) - int(self._state[kernels.END]) + int(self._state[kernels.DEAD_BYTES])

    @property
    def can_resize(self) -> bool:
        """Whether rows are equally long, so that one may take the place of another."""
        return self._stride > 0

    def rows_of(self, size_bytes: int) -> int:
        """That a room of so many bytes holds, of equally long rows."""
        return max(1, size_bytes // (self._stride + self._slot_bytes))

    def resize(self, size_bytes: int) -> "Moved":
        """Who has moved, after the room was made larger or smaller where it is.

        In a smaller room those that wait must fit; the last ones move into free slots.
        """
        most, free = self.rows_of(size_bytes), self._free[: self.free_rows].copy()
        # Numbers of four bytes, and a piece at a time: what this takes beside the room is not reserved.
        moved = Moved(most, np.arange(most, max(most, self.most_rows), dtype=np.int32))
        self._next[free] = -1  # lest an old link lead beyond a smaller room
        if most < self.most_rows:
            is_taken = np.ones(self.most_rows - most, dtype=np.bool_)
            is_taken[free[free >= most] - most] = False
            free = free[free < most]
            free.sort()
            free, words = free[::-1], self._words.reshape(self.most_rows, -1)
            for begin in range(0, len(is_taken), _MOVED_AT_A_TIME):
                last = most + begin + np.flatnonzero(is_taken[begin : begin + _MOVED_AT_A_TIME])
                to, free = free[: len(last)], free[len(last) :]
                moved.to[last - most] = to
                words[to], self._next[to] = words[last], self._next[last]
                for codes in self._codes_apart:
                    codes[to] = codes[last]
            for links in (self._next, self._head):
                for linked in np.array_split(links, 1 + len(links) // _MOVED_AT_A_TIME):
                    linked[:] = moved.of(linked)
        else:
            free = np.append(np.arange(most - 1, self.most_rows - 1, -1, dtype=np.int32), free)
        for array, each in ((self._words, self._stride // 8), (self._next, 1), (self._free, 1)):
            array.resize(most * each, refcheck=False)
        for codes in self._codes_apart:
            codes.resize(most, refcheck=False)
        self._free[: len(free)] = free
        self.most_rows, self.rows = most, self._words.view(np.uint8)
        if self._code_at[1] > 1:
            self._code = self.rows.view(np.int64)
        return moved

    @property
    def _codes_apart(self) -> list[Int64s]:
        """Codes, where they are kept beside their rows."""
        return [self._code] if self._code_at[1] == 1 else []

    def push(self, codes: Int64s, regions: Int64s, rows: UInt8s, at: Int64s) -> None:
        """Let encoded rows wait, each for its region; they must fit."""
        needed = int(at[-1]) + len(codes) * kernels.HEADER_BYTES
        if not self._stride and self._state[kernels.END] + needed > len(self.rows):
            kernels.close_gaps(self.rows, self._at, self._state)
        room = (self.rows, self._code, self._next, self._free, self._at, self._head, self.count, self.since)
        kernels.push(*room, self._state, self._stride, self._code_at[1] == 1, codes, regions, rows, at)

    def sift(
        self, found: tuple[Int64s, Int64s, Int64s, Int64s], codes: Int64s, first_codes: Int64s, counters: Any,
        often: int, sources: Int64s,
    ) -> Int64s:  # fmt: skip
        """Let rows wait that missed, out of columns of fixed width; what came of it is told as by `sift` itself."""
        result = np.zeros(7, dtype=np.int64)
        columns = sources.copy()
        columns[:, 2] = self._offsets
        sifting_kernels.sift(
            *found, codes, first_codes, counters, often, columns, self._template,
            self.rows, self._code, self._next, self._free, self._head, self.count, self.since, self._state,
            self._code_at[1] == 1, result,
        )  # fmt: skip
        return result

    @property
    def next_slot(self) -> int:
        """The slot of the row that is pushed next."""
        return int(self._free[self.free_rows - 1])

    def choose(self, oldest: int, densest: int) -> Int64s:
        """Regions whose rows wait longest, then others with most rows; fewer when not so many have any."""
        chosen = np.empty(oldest + densest, dtype=np.int64)
        return chosen[: kernels.choose(self.count, self.since, oldest, densest, chosen)]

    def pop(self, regions: Int64s) -> tuple[Int64s, Int64s]:
        """Slots and codes of the rows that wait for regions, region after region; slots stay until `release`."""
        slots, codes = np.empty((2, int(self.count[regions].sum())), dtype=np.int64)
        lists = (self._head, self.count, self._next, self._code, *self._code_at)
        kernels.pop(*lists, regions, slots, codes)
        return slots, codes

    def put_back(self, slots: Int64s, regions: Int64s, rows: Int64s, since: Int64s) -> None:
        """Let rows wait again that `pop` took, before those that came since.

        Args:
            slots: As `pop` gave them.
            regions: For which they wait.
            rows: How many for each; none for none.
            since: When the oldest of each came.
        """
        end = np.cumsum(rows)
        self._next[slots[:-1]] = slots[1:]
        self._next[slots[end - 1]] = self._head[regions]
        self._head[regions] = slots[end - rows]
        self.count[regions] += rows.astype(np.int32)
        self.since[regions] = since

    def release(self, slots: Int64s) -> None:
        kernels.release(self.rows, self._free, self._at, self._state, self._stride, slots)

    def codes(self, slots: Int64s) -> Int64s:
        first, step = self._code_at
        return self._code[slots * step + first]

    def places(self, slots: Int64s) -> Int64s:
        """Where the rows begin in `rows`; good until the next `push`."""
        return slots * self._stride if self._stride else self._at[slots]

    def sizes(self, slots: Int64s) -> Int64s:
        """Bytes of the rows; one number when all are equally long."""
        if self._stride:
            return np.array([self._stride])
        sizes: Int64s = self.rows.view(np.int32)[(self._at[slots] >> 2) - 1].astype(np.int64)
        return sizes

    def waiting_slots(self) -> Int64s:
        """Slots of all rows on the lists of regions, which stay there."""
        slots, codes = np.empty((2, int(self.count.sum())), dtype=np.int64)
        lists = (self._head.copy(), self.count.copy(), self._next, self._code, *self._code_at)
        kernels.pop(*lists, np.flatnonzero(self.count), slots, codes)
        return slots

    def too_wide(self, row: pa.RecordBatch, size_bytes: int) -> BudgetError:
        """What to say of a row that does not fit into an empty room of so many bytes."""
        row_bytes = int(self.layout.encode(row)[1][-1])
        return BudgetError(
            f"a stream row takes {format_bytes(row_bytes)} while it waits, and the room has {format_bytes(size_bytes)}",
            code="row_too_wide",
            next_move="give the join more memory, or leave wide columns out of the stream",
            row_bytes=row_bytes,
        )

    def too_small(self, rows: int, rows_bytes: int, size_bytes: int) -> BudgetError:
        """What to say when those that waited before a snapshot do not fit."""
        return BudgetError(
            f"{rows} rows of {format_bytes(rows_bytes)} waited when the snapshot was taken, and the "
            f"room has {format_bytes(size_bytes)}",
            code="snapshot_too_large",
            next_move="restore into a join with at least the memory of the one that was snapshot",
        )

    def decode(self, slots: Int64s, memory_from: Recycled | None = None) -> pa.RecordBatch:
        return self.layout.decode(self.rows, self.places(slots), memory_from=memory_from)


__all__ = ["REGION_BYTES", "WaitingRoom"]
