"""A file of hot rows that all processes of a host map: who may do what with it, and when.

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tidemill.join.parts.kernels import Int64s
from tidemill.master.rows import UInt8s

FORMAT = 1
HEADER_BYTES = 4096
_FORMAT, _IS_CHANGING, _VERSION, _IDENTITY = range(4)
_SETTING = slice(8, 12)
_STATE = slice(16, 22)
_WAIT_SECONDS = 2.0
_MOST_TOLD_CODES = 2**21
"""However large the file is: 8 to 16 MB to write, and no more rows to read for whoever begins with them."""
_NOBODY = np.empty(0, dtype=np.int64)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

ChangedCodes = Callable[[int, int], Int64s | None]
"""Codes that changed since a version of this number and identity, or None if that is not known."""
ToldCodes = npt.NDArray[np.int32 | np.int64]
CodesAndHits = tuple[Int64s, npt.NDArray[np.uint16]]


def identity_number(identity: str) -> int:
    """What a file keeps of the identity of a master version."""
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:7], "little")


class SharedFile(ABC):
    """The file, its locks and its versions; what lies in it is the matter of those who inherit.

    Args:
        path: Of the file, one for each setting; its locks lie beside it.
        size_bytes: Of the file. Memory is taken as it fills.
        setting: Whatever must be the same for all who share it.
    """

    def __init__(self, path: Path, size_bytes: int, setting: str) -> None:
        self._size_bytes = size_bytes
        # Pages of a file may be lost with the machine: what lies there is of this boot or of none.
        boot = _BOOT_ID.read_text() if _BOOT_ID.exists() else ""
        told = f"{boot} {size_bytes} {setting}"
        self._setting = np.frombuffer(hashlib.sha256(told.encode()).digest(), dtype=np.int64)
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        self._adding = os.open(path.with_suffix(".adding"), os.O_RDWR | os.O_CREAT, 0o600)
        for lock in (self._lock, self._adding):
            weakref.finalize(self, os.close, lock)
        with self._locked(self._adding):
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            if os.fstat(file).st_size < size_bytes:
                os.ftruncate(file, size_bytes)
            self._map = mmap.mmap(file, size_bytes)
            os.close(file)
        self._memory: UInt8s = np.frombuffer(self._map, dtype=np.uint8)
        self._words = self._memory[:HEADER_BYTES].view(np.int64)
        self._state = self._words[_STATE]

    # What lies in it.

    _code_type: ClassVar[type[np.int32] | type[np.int64]] = np.int64
    """Of the codes that it can hold."""

    @property
    @abstractmethod
    def _most_told_codes(self) -> int:
        """That `popular_codes` gives."""

    @abstractmethod
    def _parts(self) -> Iterator[CodesAndHits]:
        """All codes that are hot with their hits, some at a time; others may add meanwhile."""

    @property
    @abstractmethod
    def _wants_room(self) -> bool:
        """Whether something found no room."""

    @abstractmethod
    def _make_room(self) -> None:
        """Let those go that were met least. Nobody else looks."""

    @abstractmethod
    def _empty(self) -> None:
        """Let all go. Nobody else looks."""

    @abstractmethod
    def _forget(self, codes: Int64s) -> None:
        """Let some go. Nobody else looks."""

    def popular_codes(self) -> ToldCodes:
        """Those hot now that have most hits, ascending; not all, since they take memory."""
        most = max(1, min(self._most_told_codes, _MOST_TOLD_CODES))
        by_hits = np.zeros(2**16, dtype=np.int64)
        for _, hits in self._parts():
            by_hits += np.bincount(hits, minlength=2**16)
        with_so_many = np.append(np.cumsum(by_hits[::-1])[::-1], 0)
        least = int(np.count_nonzero(with_so_many > most))
        of_equals = most - int(with_so_many[least])
        codes, end = np.empty(most, dtype=self._code_type), 0  # no list of parts: there may be millions
        for some, hits in self._parts():
            equals = np.flatnonzero(hits == least - 1)[:of_equals] if least else _NOBODY
            of_equals -= len(equals)
            is_told = hits >= least
            is_told[equals] = True
            often = some[is_told][: most - end]
            codes[end : end + len(often)] = often
            end += len(often)
        codes[:end].sort()
        return codes[:end]

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
            if self._wants_room and self._is_mine_alone():
                self._changing(self._make_room)
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
        with self._file_of(what) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_mine = True
            except BlockingIOError:
                is_mine = False
            yield is_mine

    @contextmanager
    def in_turn(self, what: str) -> Iterator[None]:
        """Inside there is one process at a time; the others wait."""
        with self._file_of(what) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _file_of(self, what: str) -> Iterator[int]:
        """A file beside it, whose lock goes when it is closed."""
        file = os.open(self._path.with_suffix(f".{what}"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield file
        finally:
            os.close(file)

    # Alone with it.

    def _follow(self, version: int, identity: int, changed_codes: ChangedCodes) -> None:
        """Let rows go that are not those of the version."""
        words = self._words
        if self._is_ready(version, identity):
            return
        codes = changed_codes(int(words[_VERSION]), int(words[_IDENTITY])) if self._is_whole else None

        def follow() -> None:
            if codes is None:
                self._empty()
            else:
                self._forget(codes)
            words[_FORMAT], words[_VERSION], words[_IDENTITY] = FORMAT, version, identity
            words[_SETTING] = self._setting

        self._changing(follow)

    def _changing(self, change: Callable[[], None]) -> None:
        """Do what nobody must see half done: should this process die meanwhile, the next one empties the file."""
        self._words[_IS_CHANGING] = 1
        change()
        self._words[_IS_CHANGING] = 0


__all__ = ["HEADER_BYTES", "ChangedCodes", "CodesAndHits", "SharedFile", "ToldCodes", "identity_number"]
