"""Compiled loops of the page format: sealing, cutting and filling pages, checking and opening runs of them.

A page is addressed in words of eight bytes, little-endian, and begins with

```
word 0       checksum of the page (`page_checksums.py`)
word 1       rows (low half) │ used bytes of the page, a multiple of eight, plus its kind (high half)
words 2 …    where each row starts in the page, two a word; not in a dense page
then         rows, each at a multiple of eight bytes; its code is its first word, or the lower half of it
```
The kind is a sum: `LINED` for a checksum over lines, up to the end of the last that is used; `DENSE` for rows that are all
equally long, so that where one starts can be computed; `SHORT` for codes of four bytes with their signs, since format 7. Pages
written before format 6 are nothing of that: their checksum is that of the used words but the first. Rows of 40 bytes took 44
of them.
"""

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.master.layout import PAGE_ALIGNMENT_BYTES
from tidemill.master.page_checksums import LINE_WORDS, line_checksum, seed_of, word_checksum

Int64s = npt.NDArray[np.int64]
UInt16s = npt.NDArray[np.uint16]
UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]
UInt8s = npt.NDArray[np.uint8]

HEAD_WORDS = 2
BLOCK_WORDS = PAGE_ALIGNMENT_BYTES // 8
LOW_HALF = np.uint64(0xFFFFFFFF)
LINED, DENSE, SHORT = 1, 2, 4
"""What the kind of a page is the sum of."""
_KINDS = 7

_READ_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_WORDS = types.Array(types.uint64, 1, "C")
_READ_UINT32S = types.Array(types.uint32, 1, "C", readonly=True)
_READ_UINT16S = types.Array(types.uint16, 1, "C", readonly=True)
_READ_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_INT64S = types.Array(types.int64, 1, "C")
_READ_BYTES = types.Array(types.uint8, 1, "C", readonly=True)


def page_sizes(rows_bytes: Int64s, rows: Int64s, kind: int) -> Int64s:
    """Used bytes of pages of a kind with so many rows of so many bytes together."""
    starts = 0 if kind & DENSE else (rows + 1) // 2
    return rows_bytes + 8 * (HEAD_WORDS + starts)


@njit(types.int64(types.int64, types.int64), cache=True, inline="always", nogil=True)
def _words_before_rows(rows: int, kind: int) -> int:
    return HEAD_WORDS if kind & DENSE else HEAD_WORDS + (rows + 1) // 2


@njit(types.int64(types.uint64), cache=True, inline="always")
def rows_of(told: np.uint64) -> int:
    """Rows of a page, by its second word."""
    return int(np.int64(told & LOW_HALF))


@njit(types.int64(types.uint64), cache=True, inline="always")
def used_words_of(told: np.uint64) -> int:
    """Words of a page that are used, by its second word."""
    return int(np.int64(told >> np.uint64(35)))


@njit(types.int64(types.uint64), cache=True, inline="always")
def kind_of(told: np.uint64) -> int:
    """The kind of a page, by its second word."""
    return int(np.int64(told >> np.uint64(32))) & _KINDS


@njit(types.int64(types.uint64, types.boolean), cache=True, inline="always")
def code_in(word: np.uint64, is_short: bool) -> int:
    """The code of a row, by its first word."""
    return int(np.int64(np.int32(word & LOW_HALF))) if is_short else int(np.int64(word))


MAY_END, MUST_END = 1, 2


@njit(types.int64(_READ_INT64S, _READ_BYTES, _READ_INT64S, types.int64, _INT64S), cache=True, nogil=True)
def cut_pages(sizes: Int64s, ends: UInt8s, page_bytes: Int64s, kind: int, first_row: Int64s) -> int:
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
            if filled + 8 * _words_before_rows(end + 1 - row, kind) > page_bytes[row] and until > row:
                break
            end += 1
            if ends[end - 1]:
                until = end
            if ends[end - 1] == MUST_END:
                break
        row = until
    return pages


@njit(types.uint64(_READ_WORDS, types.int64, types.int64, types.int64, types.uint64), cache=True, nogil=True)
def _checksum(words: UInt64s, head: int, used: int, kind: int, seed: np.uint64) -> np.uint64:
    """Of a page of a kind; there is room for whole lines, since pages lie in whole blocks."""
    if kind & LINED:
        return line_checksum(words, head, (used + LINE_WORDS - 1) // LINE_WORDS, seed)
    return word_checksum(words, head + 1, head + used, seed)


@njit(
    types.void(
        _READ_WORDS, _READ_INT64S, _READ_INT64S, _READ_INT64S, _READ_INT64S, types.uint64, types.int64, types.int64, _WORDS
    ),
    cache=True, nogil=True,
)  # fmt: skip
def fill_pages(
    rows: UInt64s,
    at: Int64s,
    end: Int64s,
    first_row: Int64s,
    begin: Int64s,
    salt: int,
    first_block: int,
    kind: int,
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
        kind: Of the pages; rows of dense ones are equally long.
        pages: What is written.
    """
    for page in range(len(begin)):
        head, first, count = begin[page], first_row[page], first_row[page + 1] - first_row[page]
        to = head + _words_before_rows(count, kind)
        for i in range(count):
            if not kind & DENSE:
                start = np.uint64(8 * (to - head))
                pages[head + HEAD_WORDS + i // 2] |= start << np.uint64(32 * (i % 2))
            for word in range(at[first + i] >> 3, end[first + i] >> 3):
                pages[to] = rows[word]
                to += 1
        pages[head + 1] = np.uint64(count) | np.uint64(8 * (to - head) + kind) << np.uint64(32)
        block = np.uint64(first_block + head // BLOCK_WORDS)
        pages[head] = _checksum(pages, head, to - head, kind, seed_of(np.uint64(salt), block))


@njit(
    types.boolean(_READ_WORDS, types.int64, types.int64, types.uint64, types.uint64),
    cache=True,
    inline="always",
)
def is_whole(words: UInt64s, head: int, end: int, salt: np.uint64, block: np.uint64) -> bool:
    """Whether the page between two words is what was written at its place."""
    told = words[head + 1]
    used, kind = used_words_of(told), kind_of(told)
    # Believed only as far as there is room, until the checksum is found right.
    room = (end - head) // LINE_WORDS * LINE_WORDS if kind & LINED else end - head
    if (kind & SHORT and not kind & LINED) or used > room or _words_before_rows(rows_of(told), kind) > used:
        return False
    return bool(_checksum(words, head, used, kind, seed_of(salt, block)) == words[head])


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
        told = words[head + 1]
        rows = rows_of(told)
        if not is_whole(words, head, begin[page + 1], salts[file[page]], block[page]) or row + rows > len(
            codes
        ):
            return page
        if kind_of(told) & DENSE:
            row_words = (used_words_of(told) - HEAD_WORDS) // max(rows, 1)
            if rows * row_words != used_words_of(told) - HEAD_WORDS:
                return page
            for i in range(rows):
                at[row + i] = 8 * (head + HEAD_WORDS + i * row_words)
        else:
            for i in range(rows):
                pair = words[head + HEAD_WORDS + i // 2] >> np.uint64(32 * (i % 2))
                at[row + i] = 8 * head + np.int64(pair & LOW_HALF)
        if kind_of(told) & SHORT:
            for i in range(row, row + rows):
                codes[i] = code_in(words[at[i] >> 3], True)
        else:
            for i in range(row, row + rows):
                codes[i] = code_in(words[at[i] >> 3], False)
        row += rows
        first_row[page + 1] = row
    return -1


__all__ = [
    "BLOCK_WORDS",
    "DENSE",
    "HEAD_WORDS",
    "LINED",
    "LOW_HALF",
    "MAY_END",
    "MUST_END",
    "SHORT",
    "code_in",
    "cut_pages",
    "fill_pages",
    "is_whole",
    "kind_of",
    "open_pages",
    "page_sizes",
    "rows_of",
    "used_words_of",
]
