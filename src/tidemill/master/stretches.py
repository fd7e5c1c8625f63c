"""Where runs of neighbouring pages lie: all that a compiled loop needs to read one after the other."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill.master.board import Board
from tidemill.master.board_kernels import (
    BYTES,
    FROM_SLOT,
    HANDLE,
    NUMBER,
    OFFSET,
    TO_TICKET,
    WAS_READ,
)
from tidemill.master.hashing import Int64s

_NO_SLOTS = np.empty((0, 4), dtype=np.int64)
_NO_CONTENT = np.empty((0, 0), dtype=np.uint8)


@dataclass(frozen=True)
class Stretches:
    """Pages in order, cut into stretches that are neighbours on disk."""

    plan: Int64s
    """A line for each stretch, as `copy_or_read` wants it."""
    edges: Int64s
    """With which of the pages each stretch begins, and the end."""
    begin: Int64s
    """Word with which each page would begin if all lay in one buffer, and the end of the last."""
    block: npt.NDArray[np.uint32]
    file: npt.NDArray[np.uint16]
    salts: npt.NDArray[np.uint64]
    board: Board | None
    most_rows_of_a_page: int

    @property
    def longest_bytes(self) -> int:
        return int(self.plan[:, BYTES].max())

    @property
    def most_pages(self) -> int:
        """Of one stretch."""
        return int(np.diff(self.edges).max())

    @property
    def board_slots(self) -> tuple[Int64s, npt.NDArray[np.uint8], int]:
        """Slots, what they hold, and this process."""
        if self.board is None:
            return _NO_SLOTS, _NO_CONTENT, 0
        return self.board.slots, self.board.content, self.board.owner

    def look_at_board(self) -> None:
        """Plan what to copy and what to post; stretches that must be read are under way from now on."""
        lines = slice(FROM_SLOT, TO_TICKET + 1)
        numbers = self.plan[:, NUMBER]
        self.plan[:, lines] = -1 if self.board is None else self.board.plan(numbers, self.plan[:, BYTES])

    def was_read(self) -> tuple[int, int]:
        """Pages and bytes that came from disk."""
        was_read = self.plan[:, WAS_READ]
        return int(np.diff(self.edges) @ was_read), int(self.plan[:, BYTES] @ was_read)

    def reads(self) -> int:
        """Runs of neighbours that came from disk."""
        lines = self.plan[self.plan[:, WAS_READ] > 0]
        goes_on = (lines[1:, OFFSET] == lines[:-1, OFFSET] + lines[:-1, BYTES]) & (
            lines[1:, HANDLE] == lines[:-1, HANDLE]
        )
        return len(lines) - int(np.count_nonzero(goes_on))


__all__ = ["Stretches"]
