"""Regions of pages that one process has read and the others of its host need too: a small shared area.

```
process A   claims 17, reads it into a slot of its own, verifies it, posts it ─┐
process B   finds 17 claimed, reads 18 meanwhile ──────────────────────────────┴▶ takes its rows out of A's slot
```
So a page is read and verified once a host. Nothing is locked. Each process has a *seat* with slots into which it alone
writes; whoever looks at a slot of another checks its ticket before and after, and reads the region itself if that
has changed meanwhile. A claim that leads to nothing is over after some milliseconds. Who is ahead waits a moment before
it overwrites what another that is at work still wants and will soon come to.
"""

import fcntl
import mmap
import os
import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tidemill.core.large_pages import gather_file

Int64s = npt.NDArray[np.int64]

LANES = 2
"""Of a seat: reads of one process that are under way at a time, each with slots of its own."""
BEHIND, AHEAD = 4, 8
"""Times the slots of a lane: regions that a process may have passed, and those that it will soon come to."""
_BLOCK_BYTES = 4096
_HAND = 0
_HEAD_WORDS = 8


class Lane(NamedTuple):
    """What one read needs to know of the board, in the order in which `pick` takes it."""

    posted: Int64s
    """For each region where it was last posted: ticket x slots + slot; 0 for nowhere."""
    claimed: Int64s
    """For each region when someone last began to read it, in nanoseconds."""
    tickets: Int64s
    """Of each slot; 0 while it is written."""
    content: npt.NDArray[np.uint64]
    """All slots, one after the other."""
    slot_words: int
    first_slot: int
    slots: int
    turn: Int64s
    """How often a slot of this lane was written."""
    held: Int64s
    """The region in each slot."""
    wanted: npt.NDArray[np.uint8]
    """For each seat and region whether rows wait for it."""
    beats: Int64s
    """When each seat last did something, in nanoseconds."""
    places: Int64s
    """The region at which each seat was then."""
    seat: int


class Board:
    """What the processes of a host share of one version of a store.

    Args:
        path: Of the shared file; its name tells apart what must not be mixed up.
        regions: That can be posted.
        seats: Processes that may share what they read; those who find no seat read for themselves alone.
        size_bytes: Of all slots.
        region_bytes: Of the longest region.
    """

    def __init__(self, path: Path, *, regions: int, seats: int, size_bytes: int, region_bytes: int) -> None:
        self._slot_bytes = _whole_blocks(region_bytes)
        self._slots_of_a_lane = max(1, size_bytes // (self._slot_bytes * seats * LANES))
        slots = self._slots_of_a_lane * LANES * seats
        numbers = np.cumsum([_HEAD_WORDS, regions, regions, slots, LANES * seats, slots, seats, seats])
        head = _whole_blocks(8 * int(numbers[-1]) + seats * regions)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        size = head + slots * self._slot_bytes
        if os.fstat(self._file).st_size < size:
            os.ftruncate(self._file, size)
            gather_file(self._file, size)  # all slots are in use soon after
        self._map = mmap.mmap(self._file, size)
        memory = np.frombuffer(self._map, dtype=np.uint8)
        parts = np.split(memory[:head].view(np.int64), numbers)
        self._head, self._posted, self._claimed, self._tickets, self._turns, self._held, *parts = parts
        self._beats, self._places, rest = parts
        self._wanted = rest.view(np.uint8)[: seats * regions].reshape(seats, regions)
        self._content = memory[head:].view(np.uint64)
        self._seats = seats
        self.seat: int | None = None
        weakref.finalize(self, os.close, self._file)

    @contextmanager
    def taken_seat(self) -> Iterator[None]:
        """Inside, this process may write to the slots of a seat if one is free; nothing is under way when it ends."""
        self.seat = next((seat for seat in range(self._seats) if self._lock(fcntl.F_WRLCK, seat)), None)
        try:
            yield
        finally:
            if self.seat is not None:
                self._wanted[self.seat] = 0
                self._lock(fcntl.F_UNLCK, self.seat)
            self.seat = None

    @property
    def hand(self) -> int:
        """Region to which reading has come: who begins there meets those that are at it."""
        return int(self._head[_HAND])

    @hand.setter
    def hand(self, region: int) -> None:
        self._head[_HAND] = region

    def is_elsewhere(self, region: int) -> bool:
        """Whether reading has come to another part of the disk: what is posted there will be gone before one comes."""
        return abs(self.hand - region) > AHEAD * self._slots_of_a_lane

    @property
    def slots_of_a_lane(self) -> int:
        return self._slots_of_a_lane

    @property
    def slot_bytes(self) -> int:
        return self._slot_bytes

    def want(self, rows: npt.NDArray[np.int32]) -> None:
        """Tell the others for which regions rows wait here, those of reads under way among them."""
        if self.seat is not None:
            self._wanted[self.seat, : len(rows)] |= rows > 0

    def lane(self, number: int) -> Lane | None:
        """For the read of that number; None without a seat."""
        if self.seat is None:
            return None
        lane = LANES * self.seat + number % LANES
        return Lane(
            self._posted, self._claimed, self._tickets, self._content, self._slot_bytes // 8,
            lane * self._slots_of_a_lane, self._slots_of_a_lane, self._turns[lane : lane + 1], self._held,
            self._wanted, self._beats, self._places, self.seat,
        )  # fmt: skip

    def _lock(self, kind: int, seat: int) -> bool:
        """Whether the lock of a seat could be changed; it belongs to this open file, and ends with the process."""
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, seat, 1, 0))
        except OSError:
            return False
        return True


def _whole_blocks(size_bytes: int) -> int:
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


__all__ = ["AHEAD", "BEHIND", "LANES", "Board", "Lane"]
