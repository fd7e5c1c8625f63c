"""Compiled loops over stream rows that wait in cells, the upper part of a memory that hot rows share.

```
│ table │ hot rows ▶       │            cell n │ … │ cell 2 │ cell 1 │
0                          LIMIT                                  end of the memory
cell   next row of its segment (4 B) │ next cell of its row, and a mark (4 B) │ code, unless the row has it │ row …
```
A row takes as many cells as it needs, nearly always one. Cells are numbered from 1; 0 says that there is none. Those
given back are handed out first, so rows never have to be moved together.
"""

from numba import njit, types

from tidemill.join.parts.kernels import Int32s, Int64s
from tidemill.master.addresses import fetch, fetch_to_write, load_32, load_64, move_bytes, store_32, store_64
from tidemill.master.row_kernels import BYTES, INT64S, READ_BYTES, READ_INT64S, UInt8s

FRESH, CELLS, USED, ROWS, QUEUE_BEGIN, QUEUE_ROWS = range(6)
"""Places in `state`, of cells: how many were ever handed out, how many there are, how many are in use; rows that wait;
where the queue of segments begins, and how many are in it."""
CAPACITY, ENTRIES, HOT_BYTES, LIMIT, WANTED_BYTES, WANTED_KEYS = range(6, 12)
"""And of hot rows: slots of the table, entries, bytes of rows, where their part of the memory ends; what did not fit."""
FREE = 12
"""Here begin the lists of cells given back. The last one given back is handed out first, and each list has one cell in
sixteen of that order: so it is known, and asked for, which cell comes sixteen later."""
FREE_LISTS = 16
STATE_WORDS = FREE + FREE_LISTS
STRIDE, CODE_BYTES, CODE_AT, LAST_OPEN, FIXED = range(5)
"""Places in `shape`: bytes of a cell, bytes of a code before its row (0 if the row has it), where the code lies in the
cell, and what tells the size of a row."""
HEADER_BYTES = 8

_BLOCK = 32
_MARK = 0x80000000
_FREED = 0xFFFFFFFF
INT32S = types.Array(types.int32, 1, "C")


@njit(types.int64(BYTES), cache=True, inline="always")
def top_of(memory: UInt8s) -> int:
    return int(memory.ctypes.data) + len(memory)


@njit(types.int64(types.int64, types.int64, types.int64), cache=True, inline="always")
def size_at(row: int, last_open: int, fixed_bytes: int) -> int:
    """Bytes of the row at an address, a multiple of eight."""
    end = fixed_bytes if last_open < 0 else load_32(row + last_open)
    return (end + 7) & ~7


@njit(types.int64(types.int64, INT64S, types.int64, types.int64), cache=True, inline="always")
def _last_freed(top: int, state: Int64s, stride: int, freed: int) -> int:
    """The last of so many cells given back; it leaves its list."""
    place = FREE + ((freed - 1) & (FREE_LISTS - 1))
    cell = state[place]
    state[place] = load_32(top - cell * stride)
    fetch_to_write(top - state[place] * stride)
    return int(cell)


@njit(types.void(types.int64, INT64S, types.int64, types.int64, types.int64), cache=True, inline="always")
def _put_freed(top: int, state: Int64s, stride: int, freed: int, cell: int) -> None:
    """Give a cell back after so many others."""
    place = FREE + (freed & (FREE_LISTS - 1))
    store_32(top - cell * stride, state[place])
    state[place] = cell


@njit(types.int64(types.int64, INT64S, types.int64), cache=True, inline="always")
def taken(top: int, state: Int64s, stride: int) -> int:
    """A free cell, now in use."""
    freed = state[FRESH] - state[USED]
    if freed:
        cell = _last_freed(top, state, stride, freed)
    else:
        state[FRESH] += 1
        cell = state[FRESH]
    state[USED] += 1
    return int(cell)


@njit(types.void(types.int64, INT64S, types.int64, types.int64), cache=True, inline="always")
def release(top: int, state: Int64s, stride: int, cell: int) -> None:
    """Give the cells of a row back."""
    while cell:
        address = top - cell * stride
        more = load_32(address + 4) & ~_MARK
        _put_freed(top, state, stride, state[FRESH] - state[USED], cell)
        store_32(address + 4, _FREED)
        state[USED] -= 1
        cell = more


@njit(types.boolean(types.int64), cache=True, inline="always")
def is_marked(address: int) -> bool:
    return load_32(address + 4) & _MARK != 0


@njit(types.void(types.int64), cache=True, inline="always")
def mark(address: int) -> None:
    """Say of the row in a cell that it had a match in pages read before."""
    store_32(address + 4, load_32(address + 4) | _MARK)


@njit(
    types.void(types.int64, types.int64, types.int64, types.int64, READ_INT64S), cache=True, inline="always"
)
def copy_row(top: int, cell: int, to: int, size: int, shape: Int64s) -> None:
    """Put the row of a cell together at an address."""
    skipped = HEADER_BYTES + shape[CODE_BYTES]
    while True:
        address = top - cell * shape[STRIDE]
        piece = min(size, shape[STRIDE] - skipped)
        move_bytes(to, address + skipped, piece)
        to += piece
        size -= piece
        if size == 0:
            return
        cell = load_32(address + 4) & ~_MARK
        skipped = HEADER_BYTES


@njit(
    types.int64(
        BYTES, INT64S, READ_INT64S, INT32S, INT32S, INT32S, INT32S, INT32S, READ_INT64S, READ_INT64S, READ_INT64S,
        types.int64, READ_BYTES, READ_INT64S,
    ),
    cache=True,
)  # fmt: skip
def push(
    memory: UInt8s,
    state: Int64s,
    shape: Int64s,
    head: Int32s,
    tail: Int32s,
    count: Int32s,
    reach: Int32s,
    queue: Int32s,
    codes: Int64s,
    first_page: Int64s,
    pages: Int64s,
    segment_pages: int,
    rows: UInt8s,
    at: Int64s,
) -> int:
    """How many rows wait now, each behind the others of its segment: as many as there are cells for.

    A segment joins the queue with its first row. `reach` is how many of its pages, and of those that follow, its rows
    need.
    """
    top, source, stride = top_of(memory), rows.ctypes.data, shape[STRIDE]
    for i in range(len(codes)):
        if i % _BLOCK == 0:  # the rows behind which these will stand, asked for together
            for k in range(i, min(i + _BLOCK, len(codes))):
                fetch(top - tail[first_page[k] // segment_pages] * stride)
        left, come_from = at[i + 1] - at[i], source + at[i]
        room = stride - HEADER_BYTES - shape[CODE_BYTES]
        needed = 1 + (max(left - room, 0) + stride - HEADER_BYTES - 1) // (stride - HEADER_BYTES)
        if needed > state[CELLS] - state[USED]:
            return i
        cell = taken(top, state, stride)
        address = top - cell * stride
        store_32(address, 0)
        if shape[CODE_BYTES]:
            store_64(address + HEADER_BYTES, codes[i])
        to = address + HEADER_BYTES + shape[CODE_BYTES]
        while True:
            piece = min(left, room)
            move_bytes(to, come_from, piece)
            left -= piece
            come_from += piece
            if left == 0:
                store_32(address + 4, 0)
                break
            more = taken(top, state, stride)
            store_32(address + 4, more)
            address = top - more * stride
            store_32(address, 0)
            to, room = address + HEADER_BYTES, stride - HEADER_BYTES
        segment = first_page[i] // segment_pages
        if count[segment] == 0:
            head[segment] = cell
            queue[(state[QUEUE_BEGIN] + state[QUEUE_ROWS]) % len(queue)] = segment
            state[QUEUE_ROWS] += 1
        else:
            store_32(top - tail[segment] * stride, cell)
        tail[segment] = cell
        count[segment] += 1
        reach[segment] = max(reach[segment], first_page[i] + pages[i] - segment * segment_pages)
        state[ROWS] += 1
    return len(codes)


@njit(types.int64(INT64S, INT32S, INT32S, types.int64, types.int64, INT64S), cache=True)
def choose(
    state: Int64s, queue: Int32s, reach: Int32s, segment_pages: int, most_pages: int, chosen: Int64s
) -> int:
    """How many segments leave the front of the queue, at least one: as many as have `most_pages` together."""
    count = pages = 0
    while count < min(state[QUEUE_ROWS], len(chosen)):
        segment = queue[(state[QUEUE_BEGIN] + count) % len(queue)]
        pages += max(segment_pages, reach[segment])
        if count and pages > most_pages:
            break
        chosen[count] = segment
        count += 1
    state[QUEUE_BEGIN] = (state[QUEUE_BEGIN] + count) % len(queue)
    state[QUEUE_ROWS] -= count
    return count


@njit(types.int64(types.int64, types.int64, types.int64, types.int64), cache=True, inline="always")
def _followed(top: int, stride: int, cell: int, cells: int) -> int:
    return load_32(top - cell * stride) if cell > cells else cell


@njit(types.void(BYTES, INT64S, READ_INT64S, INT32S, INT32S, types.int64), cache=True)
def keep_cells(memory: UInt8s, state: Int64s, shape: Int64s, head: Int32s, tail: Int32s, cells: int) -> None:
    """Leave so many cells; rows in those beyond move to free ones. They must fit.

    Three passes in the order of memory: 40 MB take 10 ms, where following the lists would take 100.
    """
    top, stride = top_of(memory), shape[STRIDE]
    if cells < state[FRESH]:
        handed_out, freed = state[FRESH], 0
        state[FRESH] = cells
        state[FREE : FREE + FREE_LISTS] = 0
        for cell in range(cells, 0, -1):
            if load_32(top - cell * stride + 4) == _FREED:
                _put_freed(top, state, stride, freed, cell)
                freed += 1
        for cell in range(cells + 1, handed_out + 1):
            if load_32(top - cell * stride + 4) != _FREED:
                moved = _last_freed(top, state, stride, freed)
                freed -= 1
                move_bytes(top - moved * stride, top - cell * stride, stride)
                store_32(top - cell * stride, moved)
        for cell in range(1, cells + 1):
            address = top - cell * stride
            more = load_32(address + 4)
            if more != _FREED:
                store_32(address, _followed(top, stride, load_32(address), cells))
                store_32(address + 4, (more & _MARK) | _followed(top, stride, more & ~_MARK, cells))
        for segment in range(len(head)):
            head[segment] = _followed(top, stride, head[segment], cells)
            tail[segment] = _followed(top, stride, tail[segment], cells)
    state[CELLS] = cells


@njit(types.int64(BYTES, READ_INT64S, INT32S, READ_INT64S, BYTES, INT64S, INT64S), cache=True)
def copy_waiting(
    memory: UInt8s, shape: Int64s, head: Int32s, segments: Int64s, rows: UInt8s, at: Int64s, marks: Int64s
) -> int:
    """Bytes of all rows that wait for some segments, put together in `rows` if that is long enough."""
    top, end, count = top_of(memory), 0, 0
    for i in range(len(segments)):
        cell = head[segments[i]]
        while cell:
            address = top - cell * shape[STRIDE]
            size = size_at(address + HEADER_BYTES + shape[CODE_BYTES], shape[LAST_OPEN], shape[FIXED])
            if len(rows):
                copy_row(top, cell, rows.ctypes.data + end, size, shape)
                at[count], marks[count] = end, 1 if is_marked(address) else 0
            end += size
            count += 1
            cell = load_32(address)
    return end


@njit(types.void(BYTES, READ_INT64S, READ_INT64S), cache=True)
def take_marks_off(memory: UInt8s, shape: Int64s, numbers: Int64s) -> None:
    """Say of the rows in some cells that they had no match in pages read before."""
    top = top_of(memory)
    for i in range(len(numbers)):
        address = top - numbers[i] * shape[STRIDE] + 4
        store_32(address, load_32(address) & ~_MARK)


@njit(types.void(BYTES, READ_INT64S, types.int64, READ_INT64S), cache=True)
def mark_in_order(memory: UInt8s, shape: Int64s, cell: int, marks: Int64s) -> None:
    """Mark rows of one segment, from its first cell on, where `marks` is not 0."""
    top = top_of(memory)
    for i in range(len(marks)):
        if cell == 0:
            return
        if marks[i]:
            mark(top - cell * shape[STRIDE])
        cell = load_32(top - cell * shape[STRIDE])


@njit(types.void(BYTES, READ_INT64S, INT32S, READ_INT64S, INT64S), cache=True)
def touch(memory: UInt8s, shape: Int64s, head: Int32s, segments: Int64s, at: Int64s) -> None:
    """Bring the rows of some segments into the processor's caches: lists side by side, so that waits overlap."""
    top = top_of(memory)
    for i in range(len(segments)):
        at[i] = head[segments[i]]
    is_left = True
    while is_left:
        is_left = False
        for i in range(len(segments)):
            if at[i]:
                at[i] = load_32(top - at[i] * shape[STRIDE])
                fetch(top - at[i] * shape[STRIDE])
                is_left = True


@njit(types.int64(types.int64, types.int64, READ_INT64S), cache=True, inline="always")
def code_of(top: int, cell: int, shape: Int64s) -> int:
    return load_64(top - cell * shape[STRIDE] + shape[CODE_AT])


__all__ = [
    "CAPACITY",
    "CELLS",
    "CODE_AT",
    "CODE_BYTES",
    "ENTRIES",
    "FIXED",
    "HEADER_BYTES",
    "HOT_BYTES",
    "LAST_OPEN",
    "LIMIT",
    "QUEUE_BEGIN",
    "QUEUE_ROWS",
    "ROWS",
    "STATE_WORDS",
    "STRIDE",
    "USED",
    "WANTED_BYTES",
    "WANTED_KEYS",
    "choose",
    "code_of",
    "copy_row",
    "copy_waiting",
    "is_marked",
    "keep_cells",
    "mark",
    "mark_in_order",
    "push",
    "release",
    "size_at",
    "take_marks_off",
    "taken",
    "top_of",
    "touch",
]
