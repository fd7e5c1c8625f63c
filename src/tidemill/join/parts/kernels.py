"""Compiled loops: hashing, probing, counting, choosing pages.

Signatures are fixed and compiled code is kept on disk, so that a new process loads it instead of
compiling for seconds. `warm_up` fills that cache at set-up.
"""

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.master.addresses import fetch

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
UInt8s = npt.NDArray[np.uint8]
UInt16s = npt.NDArray[np.uint16]
UInt32s = npt.NDArray[np.uint32]
Bools = npt.NDArray[np.bool_]

# Mapped files and Arrow buffers are read-only; writable arrays are accepted as well.
_READ_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_READ_INT32S = types.Array(types.int32, 1, "C", readonly=True)
_READ_SLOTS = types.Array(types.int64, 2, "C", readonly=True)
_READ_BOOLS = types.Array(types.boolean, 1, "C", readonly=True)
_INT64S = types.Array(types.int64, 1, "C")
_UINT32S = types.Array(types.uint32, 1, "C")
COUNTERS = types.Array(types.uint8, 2, "C")
"""Of a sketch with short ones."""
_LONG_COUNTERS = types.Array(types.uint16, 2, "C")
_SLOTS = types.Array(types.int64, 2, "C")
_BOOLS = types.Array(types.boolean, 1, "C")
_LOW_HALF = np.uint64(0xFFFFFFFF)
_AHEAD = 16  # keys; a power of two
MOST_COUNTED = 255
"""Of a short counter."""


@njit(types.uint64(types.int64), cache=True, inline="always")
def mix(key: int | np.int64) -> np.uint64:
    """Spread the bits of a key over 64 bits (the finaliser of MurmurHash3)."""
    h = np.uint64(key)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(33))


@njit(types.int64(types.int64, types.int64), cache=True, inline="always")
def home_slot(key: int | np.int64, capacity: int) -> np.int64:
    # The upper half of the hash scaled to the capacity: any capacity works, not only powers of two.
    return np.int64(((mix(key) >> np.uint64(32)) * np.uint64(capacity)) >> np.uint64(32))


@njit(types.int64(_SLOTS, types.int64, _READ_INT64S, _BOOLS), cache=True)
def insert_keys(slots: Int64s, entries: int, keys: Int64s, is_new: Bools) -> int:
    """Number of entries after adding each key that was absent; `is_new` marks those.

    A slot holds a key and its entry number plus one; 0 marks a free slot.
    """
    capacity = slots.shape[0]
    for i in range(len(keys)):
        at = home_slot(keys[i], capacity)
        while slots[at, 1] != 0 and slots[at, 0] != keys[i]:
            at = at + np.int64(1) if at + 1 < capacity else np.int64(0)
        is_new[i] = slots[at, 1] == 0
        if is_new[i]:
            entries += 1
            slots[at, 0] = keys[i]
            slots[at, 1] = entries
    return entries


@njit(types.void(_READ_SLOTS, types.int64, _READ_INT64S, _INT64S), cache=True)
def probe_keys(slots: Int64s, entries: int, keys: Int64s, found: Int64s) -> None:
    """Entry number of each key, or -1."""
    capacity = slots.shape[0]
    for i in range(len(keys)):
        at = home_slot(keys[i], capacity)
        # Bounded, so that a damaged mapped table can neither loop for ever nor name a false entry.
        for _ in range(capacity):
            if slots[at, 1] == 0 or slots[at, 0] == keys[i]:
                break
            at = at + np.int64(1) if at + 1 < capacity else np.int64(0)
        entry = slots[at, 1] - 1 if slots[at, 0] == keys[i] else -1
        found[i] = entry if entry < entries else -1


@njit(types.void(_UINT32S, _READ_INT64S), cache=True)
def count_entries(counts: UInt32s, entries: Int64s) -> None:
    """Add one to the count of each entry that is not -1."""
    for i in range(len(entries)):
        if entries[i] >= 0:
            counts[entries[i]] += 1


@njit(
    [types.void(kind, _READ_INT64S, types.uint32, _UINT32S) for kind in (COUNTERS, _LONG_COUNTERS)],
    cache=True, nogil=True,
)  # fmt: skip
def count_keys(counters: UInt8s | UInt16s, keys: Int64s, added: int, estimates: UInt32s) -> None:
    """Add to the count of each key and give its estimate; conservative update of a count-min sketch.

    The counters of some keys ahead are asked for before they are looked at, since each lies in another cache line.
    """
    width = np.uint64(counters.shape[1])
    each = counters.itemsize
    base, line, most = counters.ctypes.data, each * counters.shape[1], 256**each - 1
    ahead = np.empty((_AHEAD, 2), dtype=np.int64)
    for i in range(len(keys) + _AHEAD):
        turn = i & (_AHEAD - 1)
        first, second = ahead[turn, 0], ahead[turn, 1]
        if i < len(keys):
            h = mix(keys[i])
            ahead[turn, 0] = np.int64(((h & _LOW_HALF) * width) >> np.uint64(32))
            ahead[turn, 1] = np.int64(((h >> np.uint64(32)) * width) >> np.uint64(32))
            fetch(base + each * ahead[turn, 0])
            fetch(base + line + each * ahead[turn, 1])
        if i < _AHEAD:
            continue
        estimate = int(min(counters[0, first], counters[1, second])) + added
        estimate = min(estimate, most)
        if counters[0, first] < estimate:
            counters[0, first] = estimate
        if counters[1, second] < estimate:
            counters[1, second] = estimate
        estimates[i - _AHEAD] = estimate


@njit(
    types.int64(_READ_BOOLS, _READ_INT32S, _READ_INT32S, types.int64, types.int64, _BOOLS, _INT64S),
    cache=True,
)
def choose_pages(
    waiting: Bools,
    first_page: Int32s,
    last_page: Int32s,
    oldest: int,
    segment_pages: int,
    marked: Bools,
    chosen: Int64s,
) -> int:
    """Number of pages put into `chosen`: segments that start with the pages of the oldest waiting rows.

    A row chooses `segment_pages` pages, or all of its own when they are more, unless its own are
    chosen already; each page comes once. Stops before the row whose segment does not fit. `marked`
    is all false before and after.
    """
    count = 0
    for i in range(oldest, len(waiting)):
        if not waiting[i]:
            continue
        own = 0
        for page in range(first_page[i], last_page[i] + 1):
            own += not marked[page]
        if own == 0:
            continue
        until = min(max(last_page[i] + 1, first_page[i] + segment_pages), len(marked))
        missing = own
        for page in range(last_page[i] + 1, until):
            missing += not marked[page]
        if count + missing > len(chosen):
            break
        for page in range(first_page[i], until):
            if not marked[page]:
                marked[page] = True
                chosen[count] = page
                count += 1
        if count == len(chosen):
            break
    for c in range(count):
        marked[chosen[c]] = False
    return count


@njit(
    types.int64(_READ_INT64S, _READ_INT32S, _READ_INT32S, _READ_INT32S, _BOOLS, _INT64S),
    cache=True,
)
def finish_rows(
    pages: Int64s, by_key: Int32s, first_page: Int32s, last_page: Int32s, waiting: Bools, finished: Int64s
) -> int:
    """Number of rows put into `finished`, in key order: those waiting whose pages are all in `pages`.

    In key order both page columns ascend, so the rows of a run of neighbouring pages lie together.
    """
    count = 0
    begin = 0
    while begin < len(pages):
        end = begin
        while end + 1 < len(pages) and pages[end + 1] == pages[end] + 1:
            end += 1
        low, high = 0, len(by_key)
        while low < high:
            middle = (low + high) // 2
            if first_page[by_key[middle]] < pages[begin]:
                low = middle + 1
            else:
                high = middle
        while low < len(by_key) and last_page[by_key[low]] <= pages[end]:
            row = by_key[low]
            if waiting[row]:
                waiting[row] = False
                finished[count] = row
                count += 1
            low += 1
        begin = end + 1
    return count


@njit(
    types.void(_READ_INT64S, _READ_INT64S, _READ_INT64S, _READ_INT64S, _INT64S, _INT64S),
    cache=True,
)
def find_in_pages(
    stored: Int64s, begin: Int64s, end: Int64s, keys: Int64s, start: Int64s, matches: Int64s
) -> None:
    """Where the rows of each key start in its own page or pages, and how many there are.

    Looked through from the front, so that pages need not be sorted inside; rows of a key are neighbours.
    """
    for i in range(len(keys)):
        at = begin[i]
        while at < end[i] and stored[at] != keys[i]:
            at += 1
        start[i] = at
        while at < end[i] and stored[at] == keys[i]:
            at += 1
        matches[i] = at - start[i]


__all__ = [
    "COUNTERS",
    "MOST_COUNTED",
    "Bools",
    "Int32s",
    "Int64s",
    "UInt8s",
    "UInt16s",
    "UInt32s",
    "choose_pages",
    "count_entries",
    "count_keys",
    "find_in_pages",
    "finish_rows",
    "insert_keys",
    "probe_keys",
]
