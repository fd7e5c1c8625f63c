"""Reading and verifying in one compiled call, which needs the interpreter only when it is over.

A thread that reads stretch by stretch in Python asks for the interpreter after each of them, and waits for it while
another thread computes: up to 5 ms, where the read took 0.1 ms.
"""

from typing import Any

import numpy as np
from numba import njit, types

from tidemill.master.many_reads import read_many
from tidemill.master.page_kernels import Int64s, UInt16s, UInt32s, UInt64s, open_pages

_READ_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_INT64S = types.Array(types.int64, 1, "C")
_WORDS = types.Array(types.uint64, 1, "C")
_READ_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_READ_UINT32S = types.Array(types.uint32, 1, "C", readonly=True)
_READ_UINT16S = types.Array(types.uint16, 1, "C", readonly=True)

pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.uintp, types.uintp, types.int64))

NOT_READ = -2
"""Instead of a page that fails its checksum: a stretch could not be read in full."""


@njit(
    types.int64(
        types.int64, _READ_INT64S, _READ_INT64S, _READ_INT64S, _READ_INT64S, _WORDS, _READ_INT64S, _READ_UINT32S, _READ_UINT16S,
        _READ_WORDS, _INT64S, _INT64S, _INT64S,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def read_pages(
    context: int,
    handles: Int64s,
    offsets: Int64s,
    places: Int64s,
    sizes: Int64s,
    words: UInt64s,
    begin: Int64s,
    block: UInt32s,
    file: UInt16s,
    salts: UInt64s,
    first_row: Int64s,
    codes: Int64s,
    at: Int64s,
) -> int:
    """What `open_pages` answers, after the stretches were read into `words`; or `NOT_READ`.

    Args:
        context: For many reads at once; 0 for one after the other.
        handles: File of each stretch.
        offsets: Where it begins there.
        places: Byte of the buffer at which it goes.
        sizes: Its bytes.
        words: The buffer.
        begin: From here on as in `open_pages`.
        block: …
        file: …
        salts: …
        first_row: …
        codes: …
        at: …
    """
    target = words.ctypes.data
    many = read_many(context, handles, offsets, places, sizes, int(target)) if context else 0
    for i in range(many, len(handles)):
        done = np.int64(0)
        while done < sizes[i]:
            place, left = np.uintp(target + places[i] + done), np.uintp(sizes[i] - done)
            count = pread(np.int32(handles[i]), place, left, offsets[i] + done)
            if count <= 0:
                return NOT_READ
            done += count
    return open_pages(words, begin, block, file, salts, first_row, codes, at)


__all__ = ["NOT_READ", "pread", "read_pages"]
