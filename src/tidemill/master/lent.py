"""Memory that compiled loops fill and Arrow takes over as one batch; it comes back when the batch is gone.

Put together column by column, a batch of ten columns costs 130 µs of Python. Arrow's C data interface
(https://arrow.apache.org/docs/format/CDataInterface.html) takes all of it in one call of 3 µs: a head of addresses before
the columns, and a function to call when nobody refers to them any more. That function runs in any thread, without Python's
lock, and does no more than clear a mark; memory goes back where it came from when somebody borrows next.
"""

import atexit
import ctypes
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import cfunc, njit, types

from tidemill.core.recycled import MemoryBlock, Recycled
from tidemill.master.addresses import load_64, store_64, store_shared
from tidemill.master.row_kernels import CACHE_LINE_BYTES, READ_FACTS

Int64s = npt.NDArray[np.int64]
UInt8s = npt.NDArray[np.uint8]

_WORDS = 10  # of `struct ArrowArray`
_LENGTH, _NULLS, _, _BUFFERS, _CHILDREN, _BUFFER_LIST, _CHILD_LIST, _, _RELEASE, _PRIVATE = range(_WORDS)
_FIRST = 1  # behind the mark
_LOOKED_AT = 16  # loans of a memory, whenever it lends: as many as are out, unless somebody collects batches


@cfunc(types.void(types.int64), cache=True)
def _give_back(array: int) -> None:
    mark = load_64(array + 8 * _PRIVATE)
    store_64(array + 8 * _RELEASE, 0)
    store_shared(mark, 0)


def head_of(buffers: Sequence[int]) -> Int64s:
    """What Arrow reads first, of a batch whose columns have so many buffers each: two words for each of the head.

    The first one is a number, the second one whether it is counted from the address of the head. The first word of the
    head itself is the mark that is cleared when the batch is gone.
    """
    columns = len(buffers)
    children = _FIRST + _WORDS * (columns + 1)
    lists = children + columns
    head = np.zeros((lists + 1 + 3 * columns, 2), dtype=np.int64)
    structs = head[_FIRST:children].reshape(columns + 1, _WORDS, 2)
    head[0, 0] = 1
    structs[0, [_BUFFERS, _CHILDREN], 0] = 1, columns
    structs[0, _CHILD_LIST] = 8 * children, 1
    structs[1:, _BUFFERS, 0] = buffers
    structs[:, _BUFFER_LIST, 0] = 8 * (lists + np.maximum(0, 3 * np.arange(-1, columns) + 1))
    structs[:, _RELEASE, 0] = int(_give_back.address or 0)
    structs[:, [_BUFFER_LIST, _PRIVATE], 1] = 1
    head[children:lists, 0] = 8 * (_FIRST + _WORDS * np.arange(1, columns + 1))
    head[children:lists, 1] = 1
    return head


@njit(types.int64(READ_FACTS), cache=True, inline="always")
def columns_of(head: Int64s) -> int:
    return (len(head) - _FIRST - _WORDS - 1) // (_WORDS + 4)


@njit(types.int64(READ_FACTS, types.int64, types.int64), cache=True)
def put_head(head: Int64s, base: int, rows: int) -> int:
    """Bytes of the head of a batch of so many rows, written to an address; its columns are still to be named."""
    for word in range(len(head)):
        store_64(base + 8 * word, head[word, 0] + head[word, 1] * base)
    for struct in range(columns_of(head) + 1):
        store_64(base + 8 * (_FIRST + _WORDS * struct + _LENGTH), rows)
    return (8 * len(head) + CACHE_LINE_BYTES - 1) & -CACHE_LINE_BYTES


@njit(
    types.void(READ_FACTS, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64),
    cache=True,
)
def name_column(
    head: Int64s, base: int, column: int, nulls: int, bitmap: int, data: int, values: int
) -> None:
    """Say where the buffers of a column lie; 0 for one that it does not have."""
    place = base + 8 * (len(head) - 3 * (columns_of(head) - column))
    store_64(place, bitmap)
    store_64(place + 8, data)
    store_64(place + 16, values)
    store_64(base + 8 * (_FIRST + _WORDS * (column + 1) + _NULLS), nulls)


class Loan:
    """A block of memory of which a batch is made, until its mark is cleared."""

    __slots__ = ("_address", "block", "mark", "room")

    def __init__(self, block: MemoryBlock, size_bytes: int) -> None:
        self.block, self._address = block, block.address
        self.room: UInt8s = block.bytes[:size_bytes]
        """For a head and columns; it begins at a multiple of 4,096."""
        self.mark = block.first_word
        self.mark[0] = 1

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """What was written to the room."""
        importer: Any = pa.RecordBatch
        # Arrow gives back what it refuses.
        batch: pa.RecordBatch = importer._import_from_c(self._address + 8 * _FIRST, schema)  # noqa: SLF001 -- the only door
        return batch


_loans: dict[Recycled, deque[Loan]] = {}
"""Out at Arrow's, by the memory they are of: they outlive whoever lent them."""
_lock = threading.Lock()


def batch_of(
    memory: Recycled, size_bytes: int, fill: Callable[[UInt8s], None], schema: pa.Schema
) -> pa.RecordBatch:
    """A batch in one block of memory, after that of batches which are gone went back.

    Args:
        memory: Where it comes from.
        size_bytes: Of the block.
        fill: Writes a head and columns to it; it begins at a multiple of 4,096.
        schema: Of the batch.
    """
    loan = lend(memory, size_bytes)
    try:
        fill(loan.room)
    except BaseException:
        loan.mark[0] = 0
        raise
    return loan.batch(schema)


def lend(memory: Recycled, size_bytes: int) -> Loan:
    """Memory for a batch, after that of batches which are gone went back."""
    with _lock:
        # Others' in turn, a memory at a time: whoever lends no more is looked after by those that do.
        other = next(iter(_loans), memory)
        _take_back(other)
        if other is not memory:
            _take_back(memory)
        loan = Loan(memory.lend(size_bytes), size_bytes)
        _loans.setdefault(memory, deque()).append(loan)
    return loan


def _take_back(memory: Recycled) -> None:
    """Look at the oldest loans of a memory; what is still out comes last, and so does the memory."""
    loans = _loans.pop(memory, deque())
    for _ in range(min(_LOOKED_AT, len(loans))):
        loan = loans.popleft()
        if loan.mark[0]:
            loans.append(loan)
        else:
            memory.take_back(loan.block)
    if loans:
        _loans[memory] = loans


def _keep_for_ever(*things: Any) -> None:
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


_keep_for_ever(_give_back)
# A batch may be dropped when modules are gone.
atexit.register(lambda: _keep_for_ever(*_loans.values()))


__all__ = ["Loan", "batch_of", "columns_of", "head_of", "lend", "name_column", "put_head"]
