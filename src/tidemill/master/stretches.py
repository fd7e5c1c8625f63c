"""Where runs of neighbouring pages lie: all that a compiled loop needs to read one after the other."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.master.board_kernels import BYTES, HANDLE, OFFSET, WAS_READ
from tidemill.master.hashing import Int64s

_PLAN = types.Array(types.int64, 2, "C")
_READ_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_INT64S = types.Array(types.int64, 1, "C")


@dataclass(frozen=True)
class Stretches:
    """Pages in order, cut into stretches that are neighbours on disk."""

    plan: Int64s
    """A line for each stretch, as `board_kernels` wants it."""
    edges: Int64s
    """With which of the pages each stretch begins, and the end."""
    begin: Int64s
    """Word with which each page would begin if all lay in one buffer, and the end of the last."""
    block: npt.NDArray[np.uint32]
    file: npt.NDArray[np.uint16]
    salts: npt.NDArray[np.uint64]
    most_rows_of_a_page: int

    @property
    def longest_bytes(self) -> int:
        return int(self.plan[:, BYTES].max())

    @property
    def most_pages(self) -> int:
        """Of one stretch."""
        return int(np.diff(self.edges).max())

    def told(self) -> tuple[int, int, int]:
        """Pages, bytes and runs of neighbours that came from disk."""
        told = np.zeros(3, dtype=np.int64)
        _tell(self.plan, self.edges, told)
        pages, size_bytes, reads = told.tolist()
        return pages, size_bytes, reads


@njit(types.void(_PLAN, _READ_INT64S, _INT64S), cache=True)
def _tell(plan: Int64s, edges: Int64s, told: Int64s) -> None:
    """Add up what was read of a plan: pages, bytes, runs of neighbours."""
    end, handle = np.int64(0), np.int64(-1)
    for i in range(len(plan)):
        if plan[i, WAS_READ]:
            told[0] += edges[i + 1] - edges[i]
            told[1] += plan[i, BYTES]
            told[2] += plan[i, OFFSET] != end or plan[i, HANDLE] != handle
            end, handle = plan[i, OFFSET] + plan[i, BYTES], plan[i, HANDLE]


__all__ = ["Stretches"]
