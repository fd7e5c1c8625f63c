"""The compiled loop that finds the version valid at a time."""

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.master.addresses import load_8, load_32, load_64
from tidemill.master.row_kernels import INT64S, READ_BYTES, READ_INT64S

UInt8s = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]


@njit(
    types.void(READ_BYTES, READ_INT64S, READ_INT64S, READ_BYTES, READ_INT64S, INT64S), cache=True, nogil=True
)
def find_versions(
    rows: UInt8s, starts: Int64s, times: Int64s, present: UInt8s, facts: Int64s, at: Int64s
) -> None:
    """`at` gets the place of each value's version that is valid at its time, -1 where none is.

    Versions lie the newest first, so the first that begins in time is the only one that can be valid. `facts` are
    the slots of valid-from and valid-to, byte and bit that tell whether there is a valid-to, the slot that says where
    a row ends (or -1), and the bytes of every row.
    """
    base = rows.ctypes.data
    begin_slot, end_slot, place, bit, last_slot, fixed_bytes = facts
    for i in range(len(times)):
        at[i] = -1
        if not present[i]:
            continue
        row, time = starts[i], times[i]
        while row < starts[i + 1]:
            address = base + row
            if load_64(address + begin_slot) <= time:
                is_open = (load_8(address + place) >> bit) & 1 == 0
                if is_open or time < load_64(address + end_slot):
                    at[i] = row
                break
            end = fixed_bytes if last_slot < 0 else load_32(address + last_slot)
            row += (end + 7) & ~7


__all__ = ["find_versions"]
