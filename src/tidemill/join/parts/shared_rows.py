"""Hot rows and waiting rows in one memory, each with as much of it as the other leaves."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidemill.join.output import OutputPlan
from tidemill.join.parts import cell_kernels as cells
from tidemill.join.parts import cell_sifting_kernels
from tidemill.join.parts import kept_kernels as kept
from tidemill.join.parts.kernels import Bools, Int32s, Int64s
from tidemill.master.index import PageIndex
from tidemill.master.row_kernels import CACHE_LINE_BYTES
from tidemill.master.rows import RowLayout, UInt8s
from tidemill.master.short_numbers import SHORT_CODE_BYTES

SEGMENT_BYTES = 5 * 4
"""Of the lists of a segment: first and last cell, rows, pages that they need, place in the queue."""
LEAST_HOT_BYTES = 4 * kept.ENTRY_BYTES
_SLACK = 8  # hot rows grow by an eighth: 40 MB of waiting rows take 10 ms to make room


class StreamCells:
    """How stream rows lie in cells.

    A row of fixed length takes one cell. For open lengths a cell has what a row is expected to take, and longer rows
    take several. A key of 64 bits is its own code; other codes lie before their rows.
    """

    def __init__(self, plan: OutputPlan) -> None:
        self.layout = RowLayout.of(plan.stream_schema)
        key = plan.stream_key
        types = [plan.stream_schema.field(name).type for name in key.columns]
        has_code = types == [pa.int64()] and not key.form.is_hashed
        code_bytes = 0 if has_code else 8
        row_bytes = self.layout.least_row_bytes
        if self.layout.last_open_offset >= 0:
            row_bytes = max(row_bytes, -(-plan.stream_row_bytes // 8) * 8)
        offset = plan.stream_schema.names.index(key.columns[0])
        code_at = cells.HEADER_BYTES + (self.layout.slots[offset].offset if has_code else 0)
        self.cell_bytes = cells.HEADER_BYTES + code_bytes + row_bytes
        row_shape = (self.layout.last_open_offset, self.layout.fixed_bytes)
        self.shape = np.array([self.cell_bytes, code_bytes, code_at, *row_shape], dtype=np.int64)
        self.offsets = np.array([slot.offset for slot in self.layout.slots], dtype=np.int64)
        """Of each column in a row."""
        self.template: UInt8s = np.zeros(self.layout.least_row_bytes, dtype=np.uint8)
        """A row without its values, of which none is NULL."""
        for slot in self.layout.slots:
            self.template[slot.validity_place] |= 1 << slot.validity_bit

    def most_bytes(self, arrow_bytes: int) -> int:
        """Cells for any one row that takes so much as an Arrow batch."""
        return most_cells_bytes(arrow_bytes, self.cell_bytes, self.layout.least_row_bytes)


def most_cells_bytes(arrow_bytes: int, cell_bytes: int, least_row_bytes: int) -> int:
    """Cells for any one row that takes so much as an Arrow batch."""
    rows_bytes = arrow_bytes + least_row_bytes + 16
    return (1 + -(-rows_bytes // (cell_bytes - cells.HEADER_BYTES))) * cell_bytes


def _ending_on_a_line(size_bytes: int) -> UInt8s:
    """Zeros that end where a line of the processor's caches does: there cells of 32 bytes begin, two to a line."""
    block: UInt8s = np.zeros(size_bytes // 8 + 8, dtype=np.uint64).view(np.uint8)
    skipped = -(block.ctypes.data + size_bytes) % CACHE_LINE_BYTES
    return block[skipped : skipped + size_bytes]


class SharedRows:
    """Hot rows below, waiting rows above, and a border that moves.

    Waiting rows lie in lists by segment of the master data; segments queue in the order of their oldest rows.

    Args:
        size_bytes: Of the memory.
        hot_bytes: Below the border at first.
        least_waiting_bytes: Above the border at any time.
        stream: How stream rows lie.
        master: Layout of master rows.
        segments: Of the master data.
        segment_pages: Of each.
        keeps_rows: False when it is enough to know that a code exists.
        reserve: Called with the bytes below the border before it moves there.
    """

    def __init__(
        self,
        size_bytes: int,
        hot_bytes: int,
        least_waiting_bytes: int,
        stream: StreamCells,
        master: RowLayout,
        segments: int,
        segment_pages: int,
        *,
        keeps_rows: bool,
        reserve: Callable[[int], None],
    ) -> None:
        self.memory = _ending_on_a_line(size_bytes // 8 * 8)
        self.stream = stream
        self.keeps_rows = keeps_rows
        self._reserve = reserve
        self.master_shape = (master.last_open_offset, master.fixed_bytes)
        self._is_short = master.code_bytes == SHORT_CODE_BYTES
        self._least_waiting_bytes = least_waiting_bytes
        self.state = np.zeros(cells.STATE_WORDS, dtype=np.int64)
        self.state[cells.CAPACITY] = LEAST_HOT_BYTES // kept.ENTRY_BYTES
        # First and last cell of the rows of each segment, their number, and how many pages they need.
        self._head, self._tail, self._count, self.reach = np.zeros((4, segments), dtype=np.int32)
        self._queue = np.zeros(max(1, segments), dtype=np.int32)
        self.segment_pages = segment_pages
        self._put_border(max(LEAST_HOT_BYTES, hot_bytes))
        # How often hot rows were hit says how many rows would wait for them, by what happened to the others since.
        self._misses = 0
        self._misses_at_look = 0
        self._queue_rows = 1
        self._evicted = 0

    @property
    def lists(self) -> tuple[Int32s, Int32s, Int32s, Int32s]:
        return self._head, self._tail, self._count, self.reach

    @property
    def waiting_rows(self) -> int:
        return int(self.state[cells.ROWS])

    @property
    def free_cells(self) -> int:
        return int(self.state[cells.CELLS] - self.state[cells.USED])

    @property
    def cells(self) -> int:
        return int(self.state[cells.CELLS])

    @property
    def border(self) -> int:
        """Bytes that hot rows may take."""
        return int(self.state[cells.LIMIT])

    @property
    def hot_codes(self) -> Int64s:
        table = (
            self.memory[: int(self.state[cells.CAPACITY]) * kept.ENTRY_BYTES].view(np.int64).reshape(-1, 2)
        )
        codes: Int64s = table[table[:, 1] != 0, 0]
        return codes

    @property
    def hot_changes(self) -> int:
        """Codes put in or thrown out so far: all that are there came, and all that went came before."""
        return int(self.state[cells.ENTRIES]) + 2 * self._evicted

    @property
    def hot_bytes_held(self) -> int:
        return int(self.state[cells.CAPACITY]) * kept.ENTRY_BYTES + int(self.state[cells.HOT_BYTES])

    @property
    def waiting_bytes_held(self) -> int:
        return int(self.state[cells.USED]) * self.stream.cell_bytes

    @property
    def waiting_row_bytes(self) -> float:
        """Of a row on average."""
        rows = self.waiting_rows
        return self.waiting_bytes_held / rows if rows else float(self.stream.cell_bytes)

    def probe(self, codes: Int64s, present: Bools) -> tuple[Int64s, Int64s]:
        """Where the hot rows of each code begin, and how many there are: -1 if it is not hot."""
        at, rows = np.empty_like(codes), np.empty_like(codes)
        kept.probe(self.memory, self.state, codes, present, at, rows)
        return at, rows

    def push(self, codes: Int64s, first_page: Int64s, pages: Int64s, rows: UInt8s, at: Int64s) -> int:
        """How many of these rows wait now, from the front: as many as there is room for."""
        waiting = (self.memory, self.state, self.stream.shape, *self.lists, self._queue)
        pushed = cells.push(*waiting, codes, first_page, pages, self.segment_pages, rows, at)
        self._misses += pushed
        self._queue_rows = max(self._queue_rows, self.waiting_rows)
        return pushed

    def sift(
        self, index: PageIndex, codes: Int64s, sources: Int64s, at: Int64s, matches: Int64s, known: Int64s
    ) -> Int64s:
        """Let rows wait that missed, out of columns of fixed width; the others close up. The result is that of `sift`."""
        result = np.zeros(6, dtype=np.int64)
        columns = sources.copy()
        columns[:, 2] = self.stream.offsets
        waiting = (self.memory, self.state, self.stream.shape, *self.lists, self._queue)
        where = (self.segment_pages, index.first_code, index.continues, index.last_code)
        cell_sifting_kernels.sift(
            *waiting,
            *where,
            codes,
            columns,
            self.stream.template,
            *self.master_shape,
            at,
            matches,
            known,
            result,
        )
        self._misses += int(result[cell_sifting_kernels.MISSES])
        self._queue_rows = max(self._queue_rows, self.waiting_rows)
        return result

    def choose(self, most_segments: int, most_pages: int) -> Int64s:
        """Segments for which the oldest rows wait; they leave the queue."""
        chosen = np.empty(most_segments, dtype=np.int64)
        count = cells.choose(self.state, self._queue, self.reach, self.segment_pages, most_pages, chosen)
        return chosen[:count]

    def touch(self, segments: Int64s) -> None:
        """Make what waits for these segments quick to reach."""
        cells.touch(self.memory, self.stream.shape, self._head, segments, np.empty_like(segments))

    def waits_for(self, segments: Int64s) -> bool:
        """Whether rows wait for any of these segments."""
        return bool(self._count[segments].any())

    @property
    def hits_per_waiting_row(self) -> float:
        return self._misses / self._queue_rows

    # The border moves.

    def look_is_due(self) -> bool:
        """Whether a queue length has passed since hot rows were judged."""
        return self._misses - self._misses_at_look >= self._queue_rows

    def judge(self, before_move: Callable[[], None]) -> None:
        """Let codes go for which fewer bytes would wait than their rows take, and waiting rows have the room.

        Hot rows close up; `before_move` is called first, for those who look at them.
        """
        before_move()
        rule = (
            *self.master_shape,
            self._is_short,
            self.waiting_row_bytes,
            1 / max(1e-9, self.hits_per_waiting_row),
            self.keeps_rows,
        )
        entries = int(self.state[cells.ENTRIES])
        kept.judge(self.memory, self.state, *rule)
        self._evicted += entries - int(self.state[cells.ENTRIES])
        self._misses //= 2
        self._misses_at_look = self._misses
        self._queue_rows = max(1, self.waiting_rows)
        wanted = self.hot_bytes_held + self.hot_bytes_held // _SLACK
        if self.border > wanted + wanted // _SLACK:
            self._put_border(max(LEAST_HOT_BYTES, wanted))

    def make_room(self, before_move: Callable[[], None]) -> None:
        """Move the border for codes that should be hot and found no room, as far as waiting rows can do with less.

        Where hot rows themselves move, `before_move` is called first.
        """
        state = self.state.tolist()
        capacity, entries, hot_bytes = state[cells.CAPACITY], state[cells.ENTRIES], state[cells.HOT_BYTES]
        wanted_bytes, wanted_keys = state[cells.WANTED_BYTES], state[cells.WANTED_KEYS]
        self.state[cells.WANTED_BYTES] = self.state[cells.WANTED_KEYS] = 0
        slots = capacity
        if kept.is_crowded(entries + wanted_keys, capacity):
            slots = max(capacity * 3 // 2, (entries + wanted_keys) * 3 // 2) + 1
        aside = capacity if slots > capacity else 0
        needed = slots * kept.ENTRY_BYTES + hot_bytes
        wanted = needed + max(wanted_bytes, aside * kept.ENTRY_BYTES, needed // _SLACK)
        in_use = max(self._least_waiting_bytes, self.waiting_bytes_held)
        border = min(wanted, len(self.memory) - in_use - self.stream.cell_bytes)
        # All cells are looked at when it moves. While nearly all are taken, each key would move it by next to nothing.
        if border > self.border and 4 * (border - self.border) >= wanted - self.border:
            self._put_border(border)
        if slots > capacity and needed + aside * kept.ENTRY_BYTES <= self.border:
            before_move()
            kept.widen_table(self.memory, self.state, slots)

    def _put_border(self, at: int) -> None:
        at = -(-at // 8) * 8
        self._reserve(at)
        count = (len(self.memory) - at) // self.stream.cell_bytes
        cells.keep_cells(self.memory, self.state, self.stream.shape, self._head, self._tail, count)
        self.state[cells.LIMIT] = at

    # What waits, for a snapshot.

    def waiting(self, first: Int64s) -> tuple[pa.RecordBatch, Int64s]:
        """All rows that wait, by segment, and whether each is marked: of `first`, then in the order of the queue."""
        begin, count = int(self.state[cells.QUEUE_BEGIN]), int(self.state[cells.QUEUE_ROWS])
        queued = self._queue[(begin + np.arange(count)) % len(self._queue)]
        segments = np.concatenate([first, queued.astype(np.int64)])
        at, marks = np.empty((2, self.waiting_rows), dtype=np.int64)
        size = cells.copy_waiting(
            self.memory, self.stream.shape, self._head, segments, self.memory[:0], at, marks
        )
        rows = np.empty(max(8, size), dtype=np.uint8)
        cells.copy_waiting(self.memory, self.stream.shape, self._head, segments, rows, at, marks)
        return self.stream.layout.decode(rows, at), marks

    def mark_first(self, segment: int, marks: Int64s) -> None:
        """Give the rows of a segment the marks that `waiting` told."""
        cells.mark_in_order(self.memory, self.stream.shape, int(self._head[segment]), marks)

    def take_marks_off(self, cell_numbers: Int64s) -> None:
        cells.take_marks_off(self.memory, self.stream.shape, cell_numbers)

    def leave_all_to_waiting_rows(self) -> None:
        self._put_border(LEAST_HOT_BYTES)


__all__ = ["LEAST_HOT_BYTES", "SEGMENT_BYTES", "SharedRows", "StreamCells", "most_cells_bytes"]
