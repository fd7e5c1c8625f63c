"""Hot rows in a file that all processes of a host map: what one reads, all of them find.

Each process that joins holds the file's lock together with the others. Whoever gets it alone may make room, or follow
the master data to another version. A process may be killed at any moment: added rows are found only when they are
there in full, and a change that was not ended is seen and the file emptied. Nothing here is needed for right results.
"""

import fcntl
import hashlib
import mmap
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.join.parts import shared_cache_kernels as kernels
from tidemill.join.parts import shared_meeting_kernels, sifting_kernels
from tidemill.join.parts.hot_cache import Met
from tidemill.join.parts.kernels import Bools, Int64s, UInt32s
from tidemill.master.rows import RowLayout, UInt8s

FORMAT = 1
ENTRY_BYTES = 16 + 2
_HEADER_BYTES = 4096
_FILL = 0.7  # of the table: fuller ones are slower to search
_EVICTED_SHARE = 0.25
_BYTES_PER_TOLD_CODE = 128
_SLOTS_AT_A_TIME = 2**17
_FORMAT, _IS_CHANGING, _VERSION, _IDENTITY = range(4)
_SETTING = slice(8, 12)
_STATE = slice(16, 22)
_WAIT_SECONDS = 2.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

ChangedCodes = Callable[[int, int], Int64s | None]
"""Codes that changed since a version of this number and identity, or None if that is not known."""


def identity_number(identity: str) -> int:
    """What a file keeps of the identity of a master version."""
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:7], "little")


class SharedRowCache:
    """The hot rows of one join on one host.

    Args:
        path: Of the file, one for each setting; its locks lie beside it.
        size_bytes: Of the file. Memory is taken as it fills.
        row_bytes: Expected size of a row; decides how the space is split between table and rows.
        layout: Of the rows.
        setting: Whatever else must be the same for all who share it.
    """

    def __init__(self, path: Path, size_bytes: int, row_bytes: int, layout: RowLayout, setting: str) -> None:
        each = row_bytes + kernels.GROUP_BYTES + ENTRY_BYTES / _FILL
        self._capacity = max(2, int((size_bytes - _HEADER_BYTES) / each / _FILL))
        self._row_shape = (layout.last_open_offset, layout.fixed_bytes)
        self._size_bytes = _HEADER_BYTES + max(self._capacity * ENTRY_BYTES + 64, size_bytes - _HEADER_BYTES)
        # Pages of a file may be lost with the machine: what lies there is of this boot or of none.
        boot = _BOOT_ID.read_text() if _BOOT_ID.exists() else ""
        told = f"{boot} {self._size_bytes} {self._capacity} {self._row_shape} {setting}"
        self._setting = np.frombuffer(hashlib.sha256(told.encode()).digest(), dtype=np.int64)
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        self._adding = os.open(path.with_suffix(".adding"), os.O_RDWR | os.O_CREAT, 0o600)
        for lock in (self._lock, self._adding):
            weakref.finalize(self, os.close, lock)
        with self._locked(self._adding):
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            if os.fstat(file).st_size < self._size_bytes:
                os.ftruncate(file, self._size_bytes)
            self._map = mmap.mmap(file, self._size_bytes)
            os.close(file)
        self._lay_out()

    def _lay_out(self) -> None:
        memory = np.frombuffer(self._map, dtype=np.uint8)
        self._words = memory[:_HEADER_BYTES].view(np.int64)
        self._state = self._words[_STATE]
        table_end = _HEADER_BYTES + self._capacity * 16
        hits_end = -(-(table_end + self._capacity * 2) // 64) * 64
        self._table = memory[_HEADER_BYTES:table_end].view(np.int64).reshape(-1, 2)
        self._hits = memory[table_end : table_end + self._capacity * 2].view(np.uint16)
        self.rows: UInt8s = memory[hits_end : hits_end + (len(memory) - hits_end) // 8 * 8]

    # What a join asks of it.

    @property
    def entries(self) -> int:
        return int(self._state[kernels.ENTRIES])

    @property
    def is_full(self) -> bool:
        return bool(self._state[kernels.IS_FULL])

    @property
    def has_been_full(self) -> bool:
        return self.is_full or int(self._state[kernels.LEAST_MET]) > 1

    @property
    def bytes_held(self) -> int:
        return _HEADER_BYTES + self._table.nbytes + self._hits.nbytes + int(self._state[kernels.END])

    def popular_codes(self) -> Int64s:
        """Those hot now that have most hits, ascending; so many that they take a sixteenth of the memory of hot rows."""
        most = max(1, self._size_bytes // _BYTES_PER_TOLD_CODE)
        parts = range(0, self._capacity, _SLOTS_AT_A_TIME)
        by_hits = np.zeros(2**16, dtype=np.int64)
        for at in parts:
            is_used, hits = self._used(at)
            by_hits += np.bincount(hits[is_used], minlength=2**16)
        with_so_many = np.cumsum(by_hits[::-1])[::-1]
        least = int(np.count_nonzero(with_so_many > most))
        codes, end = np.empty(most, dtype=np.int64), 0  # no list of parts: there may be millions
        for at in parts:
            is_used, hits = self._used(at)
            some = self._table[at : at + _SLOTS_AT_A_TIME, 0][is_used & (hits >= least)][: most - end]
            codes[end : end + len(some)] = some  # others may add meanwhile
            end += len(some)
        codes[:end].sort()
        return codes[:end]

    def _used(self, at: int) -> "tuple[Bools, npt.NDArray[np.uint16]]":
        """Some slots from a place on: which hold a code, and the hits of each."""
        some = slice(at, at + _SLOTS_AT_A_TIME)
        return self._table[some, 1] != 0, self._hits[some]

    def probe(self, codes: Int64s, present: Bools) -> tuple[Int64s, Int64s, Int64s]:
        at, rows, sizes = np.empty((3, len(codes)), dtype=np.int64)
        kernels.probe(self._table, self._hits, self.rows, codes, present, at, rows, sizes)
        self._state[kernels.PROBED] += len(codes)
        return at, rows, sizes

    def meet(self, codes: Int64s, present: Bools, waits: tuple[Any, ...], most: int) -> Met:
        known, at = np.empty((2, len(codes)), dtype=np.int64)
        result = np.zeros(7, dtype=np.int64)
        shared = (self._table, self._hits, self.rows)
        meet: Any = shared_meeting_kernels.meet
        meet(*shared, codes, present, *waits, most, known, at, result)
        self._state[kernels.PROBED] += int(result[sifting_kernels.UNTIL])
        leaving = int(result[sifting_kernels.KNOWN])
        return Met(known[:leaving], at[:leaving], result)

    def admit(
        self, page: UInt8s, page_at: Int64s, start: Int64s, matches: Int64s, codes: Int64s, met: UInt32s
    ) -> None:
        least_met = int(self._state[kernels.LEAST_MET])
        if int(met.max(initial=0)) < least_met:
            return
        read = (page, page_at, start, matches, codes, met)
        with self._locked(self._adding):
            kernels.admit(self._table, self._hits, self.rows, self._state, *read, least_met, *self._row_shape)

    def renew(self) -> None:
        """Nothing: others may be reading. Room is made between tasks, by `leave`."""

    # Who may do what.

    @contextmanager
    def used_for(self, version: int, identity: int, changed_codes: ChangedCodes) -> Iterator[bool]:
        """True inside if its rows are of this version; False if others hold it for another one."""
        yield_to_others_until = time.monotonic() + _WAIT_SECONDS
        try:
            while True:
                fcntl.flock(self._lock, fcntl.LOCK_SH)
                if self._is_ready(version, identity):
                    break
                if self._is_mine_alone():
                    self._follow(version, identity, changed_codes)
                elif time.monotonic() > yield_to_others_until:
                    yield False
                    return
                else:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
                    time.sleep(0.005)
            yield True
            if self.is_full and self._is_mine_alone():
                self._make_room()
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _is_ready(self, version: int, identity: int) -> bool:
        return self._is_whole and self._words[_VERSION] == version and self._words[_IDENTITY] == identity

    @property
    def _is_whole(self) -> bool:
        words = self._words
        is_ours = words[_FORMAT] == FORMAT and (words[_SETTING] == self._setting).all()
        return bool(is_ours and not words[_IS_CHANGING])

    def _is_mine_alone(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @staticmethod
    @contextmanager
    def _locked(file: int) -> Iterator[None]:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    @contextmanager
    def alone_in(self, what: str) -> Iterator[bool]:
        """True inside for one process at a time; the others go on without."""
        file = os.open(self._path.with_suffix(f".{what}"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_mine = True
        except BlockingIOError:
            is_mine = False
        try:
            yield is_mine
        finally:
            os.close(file)

    # Alone with it.

    def _follow(self, version: int, identity: int, changed_codes: ChangedCodes) -> None:
        """Let rows go that are not those of the version."""
        words = self._words
        if self._is_ready(version, identity):
            return
        codes = changed_codes(int(words[_VERSION]), int(words[_IDENTITY])) if self._is_whole else None
        words[_IS_CHANGING] = 1
        if codes is None:
            self._empty()
        else:
            self._state[kernels.ENTRIES] -= kernels.forget(self._table, self._hits, codes)
        words[_FORMAT], words[_VERSION], words[_IDENTITY] = FORMAT, version, identity
        words[_SETTING] = self._setting
        words[_IS_CHANGING] = 0

    def _empty(self) -> None:
        self._table[:], self._hits[:], self._state[:] = 0, 0, 0
        self._state[kernels.MOST_ENTRIES] = min(self._capacity - 1, int(self._capacity * _FILL))
        self._state[kernels.LEAST_MET] = 1

    def _make_room(self) -> None:
        """Let the quarter with the fewest hits go, and halve the hits of the others."""
        self._words[_IS_CHANGING] = 1
        used = self._hits[self._table[:, 1] != 0]
        leave = max(1, int(len(used) * _EVICTED_SHARE))
        below = int(np.partition(used, leave - 1)[leave - 1]) if len(used) else 0
        fewer, equal = int((used < below).sum()), int((used == below).sum())
        gone = kernels.evict(self._table, self._hits, below, leave - fewer, max(1, equal))
        end = kernels.close_gaps(self._table, self.rows, int(self._state[kernels.END]))
        if end < 0:
            self._empty()
        else:
            self._state[kernels.ENTRIES], self._state[kernels.END] = len(used) - gone, end
            np.right_shift(self._hits, 1, out=self._hits)
            self._state[kernels.PROBED] //= 2
            self._state[kernels.LEAST_MET] = max(2, below // 2 + 1)
        self._state[kernels.IS_FULL] = 0
        self._words[_IS_CHANGING] = 0


__all__ = ["ChangedCodes", "SharedRowCache", "identity_number"]
