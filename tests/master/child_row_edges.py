"""Decodes rows that lie between two pages of memory that nobody may touch; started by the test beside it.

Whoever reads a byte before the first row, or behind the last one, ends here with a signal.
"""

import ctypes
import mmap

import numpy as np
import pyarrow as pa

from tidemill.master.packing import Coded, Digits, Framed, Narrow, Packed, Packing
from tidemill.master.rows import RowLayout
from tidemill.master.scaling import Scaled

PAGE = mmap.PAGESIZE
ROWS = PAGE // 8
_NO_ACCESS = 0


def fenced() -> np.ndarray:
    """A page of memory with a forbidden one on either side."""
    room = mmap.mmap(-1, 3 * PAGE)
    memory = np.frombuffer(room, dtype=np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    for fence in (0, 2 * PAGE):
        if libc.mprotect(ctypes.c_void_p(memory.ctypes.data + fence), PAGE, _NO_ACCESS):
            raise OSError(ctypes.get_errno(), "mprotect")
    return memory[PAGE : 2 * PAGE]


def forms() -> list[tuple[pa.DataType, list[object], Packed]]:
    """Columns of every packed form, of one, two and three bytes: with a short code rows of eight bytes."""
    numbers, words = [n % 100 - 50 for n in range(ROWS)], [f"w{n % 7}" for n in range(ROWS)]
    kinds: list[tuple[pa.DataType, list[object], Packed]] = []
    for width in (1, 2, 3):
        kinds.append((pa.int64(), numbers, Narrow(width)))
        kinds.append((pa.float64(), [n / 100 for n in numbers], Scaled(width, 2)))
        digits = [f"no. {n % 10 ** (2 * width):0{2 * width}d}." for n in range(ROWS)]
        kinds.append((pa.string(), digits, Digits(Framed(2 * width, b"no. ", b"."))))
        frames = [f"<{n % 10**width:0{width}d}>" for n in range(ROWS)]
        kinds.append((pa.string(), frames, Framed(width, b"<", b">")))
        if width < 3:
            kinds.append((pa.string(), words, Coded(width, pa.array(words).unique())))
    return kinds


def main() -> None:
    memory = fenced()
    codes = [(-1) ** n * n * 4_000_000 for n in range(ROWS)]
    for kind, values, packed in forms():
        batch = pa.record_batch({"id": pa.array(codes, pa.int64()), "value": pa.array(values, kind)})
        packing = Packing({"id": Narrow(4), "value": packed}, has_nulls=False)
        layout = RowLayout.of(batch.schema, first="id", packing=packing)
        rows, at = layout.encode(batch)
        assert len(rows) == PAGE, "as long as the memory between the fences"
        memory[:] = rows
        found = layout.decode(memory, at[:-1])
        found.validate(full=True)
        assert found.equals(batch), packed
    print("whole")


if __name__ == "__main__":
    main()
