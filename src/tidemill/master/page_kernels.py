"""Compiled loops of the page format: sealing, cutting and filling pages, checking and opening runs of them.

A page is addressed in words of eight bytes, little-endian, and begins with

```
word 0       checksum of the other used words
word 1       rows (low half) │ used bytes of the page (high half)
words 2 …    where each row starts in the page, two a word
then         rows, each at a multiple of eight bytes; its code is its first word
```
The checksum is XXH64's round on eight lanes. Each round maps a word, and each lane, one to one, so no change within one
word can go unseen, and a change of several passes once in 2**64. Eight chains hide the latency of the multiplications.
It starts from a seed that stands for the file and the place in it, so a page from elsewhere fails too.
"""

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.master.layout import PAGE_ALIGNMENT_BYTES

Int64s = npt.NDArray[np.int64]
UInt16s = npt.NDArray[np.uint16]
UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]
UInt8s = npt.NDArray[np.uint8]

HEAD_WORDS = 2
BLOCK_WORDS = PAGE_ALIGNMENT_BYTES // 8
_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
LOW_HALF = np.uint64(0xFFFFFFFF)

_READ_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_WORDS = types.Array(types.uint64, 1, "C")
_READ_UINT32S = types.Array(types.uint32, 1, "C", readonly=True)
_READ_UINT16S = types.Array(types.uint16, 1, "C", readonly=True)
_READ_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_INT64S = types.Array(types.int64, 1, "C")
_READ_BYTES = types.Array(types.uint8, 1, "C", readonly=True)


def page_sizes(rows_bytes: Int64s, rows: Int64s) -> Int64s:
    """Used bytes of pages with so many rows of so many bytes together."""
    return rows_bytes + 8 * (HEAD_WORDS + (rows + 1) // 2)


@njit(types.uint64(types.uint64, types.uint64), cache=True, inline="always")
def seed_of(salt: np.uint64, block: np.uint64) -> np.uint64:
    """What the checksum of a page starts from: the salt of its file, and its place there."""
    return salt ^ (np.uint64(block) * _P3 + _P1)


@njit(types.uint64(types.uint64, types.uint64), cache=True, inline="always")
def _mixed(lane: np.uint64, word: np.uint64) -> np.uint64:
    lane += word * _P2
    return ((lane << np.uint64(31)) | (lane >> np.uint64(33))) * _P1


@njit(types.uint64(_READ_WORDS, types.int64, types.int64, types.uint64), cache=True, nogil=True)
def checksum(words: UInt64s, begin: int, end: int, seed: np.uint64) -> np.uint64:
    """Of the words from `begin` to before `end`."""
    a, b, c, d = seed, seed + _P1, seed + _P2, seed + _P3
    e, f, g, h = ~a, ~b, ~c, ~d
    at = begin
    while at + 8 <= end:
        a, b = _mixed(a, words[at]), _mixed(b, words[at + 1])
        c, d = _mixed(c, words[at + 2]), _mixed(d, words[at + 3])
        e, f = _mixed(e, words[at + 4]), _mixed(f, words[at + 5])
        g, h = _mixed(g, words[at + 6]), _mixed(h, words[at + 7])
        at += 8
    total = np.uint64(end - begin)
    while at < end:
        total = _mixed(total, words[at])
        at += 1
    for lane in (a, b, c, d, e, f, g, h):
        total = _mixed(total, lane)
    total ^= total >> np.uint64(29)
    total *= _P3
    return total ^ (total >> np.uint64(32))


@njit(types.int64(types.int64), cache=True, inline="always", nogil=True)
def _words_before_rows(rows: int) -> int:
    return HEAD_WORDS + (rows + 1) // 2


MAY_END, MUST_END = 1, 2


@njit(types.int64(_READ_INT64S, _READ_BYTES, _READ_INT64S, _INT64S), cache=True, nogil=True)
def cut_pages(sizes: Int64s, ends: UInt8s, page_bytes: Int64s, first_row: Int64s) -> int:
    """The number of pages; `first_row` gets the row with which each begins.

    A page takes rows while it stays within the `page_bytes` of its first row, at least one, and ends only after a row
    that says it may, or must. The last row must.
    """
    pages, row = 0, 0
    while row < len(sizes):
        first_row[pages] = row
        pages += 1
        until = end = row
        filled = 0
        while end < len(sizes):
            filled += sizes[end]
            if filled + 8 * _words_before_rows(end + 1 - row) > page_bytes[row] and until > row:
                break
            end += 1
            if ends[end - 1]:
                until = end
            if ends[end - 1] == MUST_END:
                break
        row = until
    return pages


@njit(
    types.void(
        _READ_WORDS, _READ_INT64S, _READ_INT64S, _READ_INT64S, _READ_INT64S, types.uint64, types.int64, _WORDS
    ),
    cache=True,
    nogil=True,
)
def fill_pages(
    rows: UInt64s,
    at: Int64s,
    end: Int64s,
    first_row: Int64s,
    begin: Int64s,
    salt: int,
    first_block: int,
    pages: UInt64s,
) -> None:
    """Write whole pages, sealed, into words that are zero.

    Args:
        rows: Encoded rows, in any order.
        at: Byte at which each row begins, in the order of the pages.
        end: Byte at which it ends.
        first_row: Row with which each page begins, and the number of rows.
        begin: Word with which each page begins in `pages`, at a whole block.
        salt: Of the file.
        first_block: At which `pages` will lie in the file.
        pages: What is written.
    """
    for page in range(len(begin)):
        head, first, count = begin[page], first_row[page], first_row[page + 1] - first_row[page]
        to = head + _words_before_rows(count)
        for i in range(count):
            start = np.uint64(8 * (to - head))
            pages[head + HEAD_WORDS + i // 2] |= start << np.uint64(32 * (i % 2))
            for word in range(at[first + i] >> 3, end[first + i] >> 3):
                pages[to] = rows[word]
                to += 1
        pages[head + 1] = np.uint64(count) | np.uint64(8 * (to - head)) << np.uint64(32)
        block = np.uint64(first_block + head // BLOCK_WORDS)
        pages[head] = checksum(pages, head + 1, to, seed_of(np.uint64(salt), block))


@njit(
    types.boolean(_READ_WORDS, types.int64, types.int64, types.uint64, types.uint64),
    cache=True,
    inline="always",
)
def is_whole(words: UInt64s, head: int, end: int, salt: np.uint64, block: np.uint64) -> bool:
    """Whether the page between two words is what was written at its place."""
    used = np.int64(words[head + 1] >> np.uint64(32)) >> 3
    rows = int(words[head + 1] & LOW_HALF)
    # Believed only as far as there is room, until the checksum is found right.
    if used > end - head or _words_before_rows(rows) > used:
        return False
    return bool(checksum(words, head + 1, head + int(used), seed_of(salt, block)) == words[head])


@njit(
    types.int64(
        _READ_WORDS, _READ_INT64S, _READ_UINT32S, _READ_UINT16S, _READ_WORDS, _INT64S, _INT64S, _INT64S
    ),
    cache=True,
    nogil=True,
)
def open_pages(
    words: UInt64s,
    begin: Int64s,
    block: UInt32s,
    file: UInt16s,
    salts: UInt64s,
    first_row: Int64s,
    codes: Int64s,
    at: Int64s,
) -> int:
    """The first page that is not what was written, or -1 and then where every row lies.

    Args:
        words: A buffer with whole pages.
        begin: Word with which each page begins in it, and the end of the last.
        block: Of each page in its file.
        file: Of each page.
        salts: Of the files.
        first_row: Gets the number of the first row of each page, and of all rows.
        codes: Gets the code of each row; with room for all.
        at: Gets the byte of the buffer at which each row begins.
    """
    row = 0
    first_row[0] = 0
    for page in range(len(block)):
        head = begin[page]
        rows = int(words[head + 1] & LOW_HALF)
        if not is_whole(words, head, begin[page + 1], salts[file[page]], block[page]) or row + rows > len(
            codes
        ):
            return page
        for i in range(rows):
            pair = words[head + HEAD_WORDS + i // 2] >> np.uint64(32 * (i % 2))
            start = np.int64(pair & LOW_HALF)
            at[row + i] = 8 * head + start
            codes[row + i] = np.int64(words[head + (start >> 3)])
        row += rows
        first_row[page + 1] = row
    return -1


__all__ = [
    "BLOCK_WORDS",
    "HEAD_WORDS",
    "LOW_HALF",
    "MAY_END",
    "MUST_END",
    "checksum",
    "cut_pages",
    "fill_pages",
    "is_whole",
    "open_pages",
    "page_sizes",
]
