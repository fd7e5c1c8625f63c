"""Stretches of pages that one process has read and the others of its host may need too: a small shared area.

```
process A   reads 17 from disk ─▶ verifies ─▶ posts 17 ┐
process B   waits for 17 among others, sees it posted ─┴▶ copies 17 ─▶ verifies
```
Nothing is locked. A stretch may be overwritten while it is copied; whoever copies verifies every page as if it came
from disk, and reads it from disk when a checksum fails.
"""

import mmap
import os
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidemill.master.board_kernels import OWNER, SLOT_NUMBER, TICKET

Int64s = npt.NDArray[np.int64]

_HEADER_BYTES = 4096
_CLOCK = 0
_SLOTS_AT, _UNDER_WAY_AT = 8, 264
_MOST_SLOTS = 64
_UNDER_WAY = 64
_STALE_SECONDS = 0.05  # a read that takes longer has died with its process, or is not worth waiting for


class Board:
    """Stretches posted by the processes of a host, the newest few.

    Args:
        path: Of the shared file; its name tells apart what must not be mixed up.
        size_bytes: Of the file.
        stretch_bytes: Of the longest stretch.
    """

    def __init__(self, path: Path, size_bytes: int, stretch_bytes: int) -> None:
        self._stretch_bytes = -(-stretch_bytes // 4096) * 4096
        slots = min(_MOST_SLOTS, max(0, (size_bytes - _HEADER_BYTES) // self._stretch_bytes))
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        size = _HEADER_BYTES + slots * self._stretch_bytes
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)
        self._map = mmap.mmap(file, size)
        os.close(file)
        memory = np.frombuffer(self._map, dtype=np.uint8)
        words = memory[:_HEADER_BYTES].view(np.int64)
        self._clock = words[_CLOCK : _CLOCK + 1]
        self.slots = words[_SLOTS_AT : _SLOTS_AT + 4 * _MOST_SLOTS].reshape(-1, 4)[:slots]
        self._under_way = words[_UNDER_WAY_AT : _UNDER_WAY_AT + 3 * _UNDER_WAY].reshape(-1, 3)
        self.content = memory[_HEADER_BYTES:].reshape(slots, self._stretch_bytes)
        self.owner = os.getpid()
        self._seen = int(self._clock[0])
        self._begun = 0

    def fresh(self, is_wanted: npt.NDArray[np.int32]) -> Int64s:
        """Stretches that others have posted since this was asked last, as far as they are wanted."""
        ticket, owner, number = self.slots[:, TICKET], self.slots[:, OWNER], self.slots[:, SLOT_NUMBER]
        new = np.flatnonzero((ticket > self._seen) & (owner != self.owner))
        if not len(new):
            return number[new]
        self._seen = int(ticket[new].max())
        numbers = np.unique(number[new])
        numbers = numbers[(numbers >= 0) & (numbers < len(is_wanted))]
        wanted: Int64s = numbers[is_wanted[numbers] > 0]
        return wanted

    def plan(self, numbers: Int64s, sizes: Int64s) -> Int64s:
        """For each stretch the slot and ticket to copy it from, -1 where it must be read, and those to post it under.

        Stretches that must be read are under way from now on.
        """
        lines = np.full((len(numbers), 4), -1, dtype=np.int64)
        if not len(self.slots):
            return lines
        ticket, _, number, size = self.slots.T
        is_here = (number == numbers[:, None]) & (size == sizes[:, None]) & (ticket > 0)
        slot = is_here.argmax(axis=1)
        posted = is_here[np.arange(len(numbers)), slot]
        lines[posted, 0], lines[posted, 1] = slot[posted], ticket[slot[posted]]
        read = np.flatnonzero(~posted)
        tickets = int(self._clock[0]) + 1 + np.arange(len(read))
        self._clock[0] += len(read)
        lines[read, 2], lines[read, 3] = tickets % len(self.slots), tickets
        # Halves by process: two seldom write to the same place, and then only one of them is seen.
        half = len(self._under_way) // 2
        places = (self._begun + np.arange(len(read))) % half + (self.owner % 2) * half
        self._begun += len(read)
        self._under_way[places, 0], self._under_way[places, 1] = self.owner, numbers[read]
        self._under_way[places, 2] = time.monotonic_ns()
        return lines

    def under_way(self) -> Int64s:
        """Stretches that others are reading now."""
        owner, number, since = self._under_way.T
        is_young = since > time.monotonic_ns() - int(_STALE_SECONDS * 1e9)
        numbers: Int64s = number[is_young & (owner != self.owner) & (owner != 0)]
        return numbers


__all__ = ["Board"]
