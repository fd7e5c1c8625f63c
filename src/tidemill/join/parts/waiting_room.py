"""Stream rows that wait for the disk, side by side with those that the same read will serve."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.errors import BudgetError, InternalError
from tidemill.core.recycled import Recycled
from tidemill.core.resizable import Resizable
from tidemill.core.units import format_bytes
from tidemill.join.parts import sifting_kernels
from tidemill.join.parts import waiting_kernels as kernels
from tidemill.join.parts.kernels import Int32s, Int64s
from tidemill.master.rows import RowLayout, UInt8s

_CODE_BYTES = 8
_STRIP_BYTES = 4 + 4 + 1
_OPEN_SLOT_BYTES = _STRIP_BYTES + _CODE_BYTES + 8
_MOST_SHIFT = 3
_STRIPS_PER_REGION = 8
_MOVED_AT_A_TIME = 65_536
REGION_BYTES = 4 + 4 + 8


def shift_for(size_bytes: int, row_bytes: int, regions: int) -> int:
    """Logarithm of the rows of a strip: 8, or fewer where a strip for each region would take an eighth of the room.

    Strips of 8 make that rows of a region lie side by side. One at a time they lay scattered over 17 MB, and writing a row,
    finding it again and reading it each waited for memory.

    >>> shift_for(17_000_000, 24, 1684), shift_for(1000, 24, 5)
    (3, 0)
    """
    shift = _MOST_SHIFT
    while shift and (size_bytes // row_bytes >> shift) < _STRIPS_PER_REGION * regions:
        shift -= 1
    return shift


class Moved(NamedTuple):
    """Where rows of the last strips of a room are now."""

    first: int
    """Strip from which on rows have moved."""
    to: Int32s
    """Where those of this strip, the next one and so on are now."""
    shift: int

    def of(self, slots: Int64s) -> Int64s:
        """The slots now."""
        within: Int64s = slots & ((1 << self.shift) - 1)
        return (self.strips(slots >> self.shift).astype(np.int64) << self.shift) + within

    def after(self, slots: Int32s) -> Int32s:
        """The same of slots behind others: each lies in the strip of the one before it, and 0 is behind none."""
        return (self.of(slots.astype(np.int64) - 1) + 1).astype(np.int32)

    def strips(self, strips: "npt.NDArray[Any]") -> "npt.NDArray[Any]":
        """The strips now; negative ones name none.

        Those that were taken off the lists still name what followed, perhaps of a larger room.
        """
        if not len(self.to):
            return strips
        number = np.clip(strips - self.first, 0, len(self.to) - 1)
        return np.where(strips >= self.first, self.to[number], strips)


class WaitingRoom:
    """Rows by region of the disk, in a fixed number of bytes.

    ```
    region   0     1     2            each with the number of its rows and the time of its oldest
             │     │     └▶ [row row ·  · ] ▶ [row row row row]
             │     └▶ ·                        a strip: slots side by side, the first one of a region being filled
             └▶ [row row row · ]
    ```

    Args:
        size_bytes: For rows and slots; regions are counted with the index.
        layout: Of stream rows.
        regions: Number of regions.
        row_bytes: Expected size of a row, where that is open.
        code_column: The column of 64 bits that is the code itself, if there is one: in rows of fixed length it is then
            not kept a second time.
        most_bytes: That it may be resized to where it is.
    """

    def __init__(
        self,
        size_bytes: int,
        layout: RowLayout,
        regions: int,
        row_bytes: int,
        code_column: str | None = None,
        most_bytes: int = 0,
    ) -> None:
        self.layout = layout
        self._stride = layout.least_row_bytes if layout.last_open_offset < 0 else 0
        has_code = bool(self._stride) and code_column is not None
        self._slot_bytes = self._stride + (0 if has_code else _CODE_BYTES)
        self._shift = shift_for(size_bytes, self._slot_bytes, regions) if self._stride else 0
        if self._stride:
            strips = self._strips_of(size_bytes)
            arena_bytes = (strips << self._shift) * self._stride
        else:
            each = max(row_bytes, layout.least_row_bytes) + kernels.HEADER_BYTES + _OPEN_SLOT_BYTES
            strips = max(1, size_bytes // each)
            arena_bytes = size_bytes - strips * _OPEN_SLOT_BYTES
        self.most_rows = strips << self._shift
        self._memory = Resizable(max(0, arena_bytes, most_bytes))
        self._words = self._memory.words(max(0, arena_bytes) // 8)
        self.rows: UInt8s = self._words.view(np.uint8)
        # Word of the first code, and words from one to the next.
        self._code_at = (0, 1)
        if has_code and code_column is not None:
            offset = layout.slots[layout.schema.names.index(code_column)].offset
            self._code_at = (offset >> 3, self._stride >> 3)
            self._code = self.rows.view(np.int64)
        else:
            self._code = np.zeros(self.most_rows, dtype=np.int64)
        self._next = np.zeros(strips, dtype=np.int32)
        self._free = np.arange(strips - 1, -1, -1, dtype=np.int32)
        self._filled = np.zeros(
            strips, dtype=np.uint8
        )  # rows of each strip that have not left; of a first one all
        self._at = np.zeros(0 if self._stride else self.most_rows, dtype=np.int64)
        self._tail = np.zeros(regions, dtype=np.int32)  # slot of the next row; 0 when nobody waits
        self.count = np.zeros(regions, dtype=np.int32)
        self.since = np.zeros(regions, dtype=np.int64)
        self._state = np.zeros(5, dtype=np.int64)
        self._offsets = np.array([slot.offset for slot in layout.slots], dtype=np.int64)
        self._template: UInt8s = np.zeros(self._stride, dtype=np.uint8)
        for slot in layout.slots if self._stride else ():  # none is NULL
            self._template[slot.validity_place] |= 1 << slot.validity_bit

    @property
    def waiting_rows(self) -> int:
        return int(self._state[kernels.ROWS])

    @property
    def free_rows(self) -> int:
        """That can wait too, whatever their regions: at worst each region takes a strip, and fills it last."""
        strips, regions = self._free_strips, len(self._tail)
        return strips if strips <= regions else regions + ((strips - regions) << self._shift)

    @property
    def _free_strips(self) -> int:
        return len(self._free) - int(self._state[kernels.STRIPS])

    @property
    def bytes_held(self) -> int:
        if self._stride:
            return int(self._state[kernels.STRIPS]) * self._strip_bytes
        return int(self._state[kernels.END]) + self.waiting_rows * _OPEN_SLOT_BYTES

    @property
    def _strip_bytes(self) -> int:
        return (self._slot_bytes << self._shift) + _STRIP_BYTES

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

    def _strips_of(self, size_bytes: int) -> int:
        """That a room of so many bytes holds, of equally long rows."""
        return max(1, size_bytes // self._strip_bytes)

    def may_resize(self, size_bytes: int) -> bool:
        """Whether those that wait would find room in so many bytes."""
        return int(self._state[kernels.STRIPS]) <= self._strips_of(size_bytes)

    def resize(self, size_bytes: int) -> "Moved":
        """Who has moved, after the room was made larger or smaller where it is.

        In a smaller room those that wait must fit; the last ones move into free strips.
        """
        strips, most = len(self._free), self._strips_of(size_bytes)
        free = self._free[: self._free_strips].copy()
        # Numbers of four bytes, and a piece at a time: what this takes beside the room is not reserved.
        moved = Moved(most, np.arange(most, max(most, strips), dtype=np.int32), self._shift)
        self._next[free] = -1  # lest an old link lead beyond a smaller room
        if most < strips:
            is_taken = np.ones(strips - most, dtype=np.bool_)
            is_taken[free[free >= most] - most] = False
            free = free[free < most]
            free.sort()
            free, words = free[::-1], self._words.reshape(strips, -1)
            for begin in range(0, len(is_taken), _MOVED_AT_A_TIME):
                last = most + begin + np.flatnonzero(is_taken[begin : begin + _MOVED_AT_A_TIME])
                to, free = free[: len(last)], free[len(last) :]
                moved.to[last - most] = to
                words[to], self._next[to], self._filled[to] = (
                    words[last],
                    self._next[last],
                    self._filled[last],
                )
                for codes in self._codes_apart:
                    by_strip = codes.reshape(strips, -1)
                    by_strip[to] = by_strip[last]
            for linked in np.array_split(self._next, 1 + len(self._next) // _MOVED_AT_A_TIME):
                linked[:] = moved.strips(linked)
            self._tail[:] = moved.after(self._tail)
        else:
            free = np.append(np.arange(most - 1, strips - 1, -1, dtype=np.int32), free)
        self.most_rows = most << self._shift
        self._words = self._memory.words(self.most_rows * self._stride // 8)
        for codes in self._codes_apart:
            codes.resize(self.most_rows, refcheck=False)
        for links in (self._next, self._free):
            links.resize(most, refcheck=False)
        self._filled.resize(most, refcheck=False)
        self._free[: len(free)] = free
        self.rows = self._words.view(np.uint8)
        if self._code_at[1] > 1:
            self._code = self.rows.view(np.int64)
        return moved

    @property
    def _codes_apart(self) -> list[Int64s]:
        """Codes, where they are kept beside their rows."""
        return [self._code] if self._code_at[1] == 1 else []

    def push(self, codes: Int64s, regions: Int64s, rows: UInt8s, at: Int64s) -> Int64s:
        """Let encoded rows wait, each for its region; they must fit. In which slots they are."""
        needed = int(at[-1]) + len(codes) * kernels.HEADER_BYTES
        if not self._stride and self._state[kernels.END] + needed > len(self.rows):
            kernels.close_gaps(self.rows, self._at, self._state)
        slots = np.empty(len(codes), dtype=np.int64)
        strips = (self.rows, self._code, self._next, self._filled, self._free, self._at)
        lists = (self._tail, self.count, self.since, self._state, self._shift, self._stride)
        kernels.push(*strips, *lists, self._code_at[1] == 1, codes, regions, rows, at, slots)
        return slots

    def fits_anew(self, regions: Int64s, row_bytes: int) -> bool:
        """Whether rows of these regions, of so many bytes in all, fit if nobody waits for any of them now."""
        if not self._stride:
            return self.fits(len(regions), row_bytes)
        strips = -(-np.bincount(regions) >> self._shift)
        return int(strips.sum()) <= self._free_strips

    def sift(
        self, found: tuple[Int64s, Int64s, Int64s, Int64s], codes: Int64s, first_codes: Int64s, counters: Any,
        often: int, sources: Int64s,
    ) -> Int64s:  # fmt: skip
        """Let rows wait that missed, out of columns of fixed width; what came of it is told as by `sift` itself."""
        result = np.zeros(7, dtype=np.int64)
        sketch = (first_codes, counters, often)
        sift: Any = sifting_kernels.sift
        sift(*found, codes, *sketch, *self.ways_in(sources), self.free_rows, result)
        return result

    def ways_in(self, sources: Int64s) -> tuple[Any, ...]:
        """What compiled calls that let rows wait, out of columns of fixed width, must know of the room."""
        columns = sources.copy()
        columns[:, 2] = self._offsets
        return (
            columns, self._template, self.rows, self._code, self._next, self._filled, self._free, self._tail, self.count,
            self.since, self._state, self._shift, self._code_at[1] == 1,
        )  # fmt: skip

    def choose(self, oldest: int, densest: int) -> Int64s:
        """Regions whose rows wait longest, then others with most rows; fewer when not so many have any."""
        chosen = np.empty(oldest + densest, dtype=np.int64)
        return chosen[: kernels.choose(self.count, self.since, oldest, densest, chosen)]

    def pop(self, regions: Int64s) -> tuple[Int64s, Int64s]:
        """Slots and codes of the rows that wait for regions, region after region; slots stay until `release`."""
        slots, codes = np.empty((2, int(self.count[regions].sum())), dtype=np.int64)
        lists = (self._tail, self.count, self._next, self._filled, self._code, *self._code_at, self._shift)
        self._check_count(kernels.pop(*lists, regions, slots, codes), len(slots))
        return slots, codes

    def _check_count(self, found: int | np.int64, counted: int) -> None:
        if found != counted:
            raise InternalError(
                f"{counted} rows were counted that wait for some regions, and their lists hold {found}",
                code="waiting_count",
                found=int(found),
                counted=counted,
            )

    def put_back(self, slots: Int64s, regions: Int64s, rows: Int64s, since: Int64s) -> None:
        """Let rows wait again that `pop` took, before those that came since.

        Args:
            slots: As `pop` gave them.
            regions: For which they wait.
            rows: How many for each; none for none.
            since: When the oldest of each came.
        """
        end, strips = np.cumsum(rows), slots >> self._shift  # those of a region are linked as they were
        since_then = (self._tail[regions] - 1) >> self._shift
        has_new = since_then >= 0
        self._filled[since_then[has_new]] = (self._tail[regions] - (since_then << self._shift))[has_new]
        self._next[strips[end - 1]] = since_then
        first = strips[end - rows]
        self._tail[regions] = (first << self._shift) + self._filled[first]
        self._filled[first] = 1 << self._shift  # as of all that are first: the tail says how far it is filled
        self.count[regions] += rows.astype(np.int32)
        self.since[regions] = since

    def release(self, slots: Int64s) -> None:
        kernels.release(
            self.rows, self._filled, self._free, self._at, self._state, self._shift, self._stride, slots
        )

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
        lists = (
            self._tail.copy(),
            self.count.copy(),
            self._next,
            self._filled.copy(),
            self._code,
            *self._code_at,
        )
        found = kernels.pop(*lists, self._shift, np.flatnonzero(self.count), slots, codes)
        self._check_count(found, len(slots))
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


__all__ = ["REGION_BYTES", "WaitingRoom", "shift_for"]
