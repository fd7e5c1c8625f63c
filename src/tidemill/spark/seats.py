"""Seats of a host: no more tasks run a join at a time than were reckoned with when its memory was divided.

Executors may come that nobody could know of when the query was made. What each worker holds was divided by then, so one
too many waits until another task of the host has ended.
"""

import errno
import fcntl
import logging
import os
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.core.errors import StoreError

_LOG = logging.getLogger("tidemill.spark")
_FILE = "seats"
_SEATS_OF_A_CALL = 2**16
_TOKEN_DIGITS = 10
_POLL_SECONDS = 0.01
_TELL_SECONDS = 1.0
"""A worker that was killed may hold its seat for some milliseconds more: nothing to tell."""
_MOST_WAIT_SECONDS = 600.0
_CAREFUL_TASKS = 16
"""After one that had to wait, tasks behind which a process keeps nothing."""


class HostSeats:
    """The seats of one call of `enrich` on this host; a seat is free again when its process dies.

    All calls lock bytes of one empty file, each at a place of its own: no file is left behind for each.

    Args:
        folder: That all workers of the host share.
        token: Of the call, hexadecimal.
        seats: Tasks that may run at a time.
    """

    def __init__(self, folder: Path, token: str, seats: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._seats = seats
        self._first = int(token[:_TOKEN_DIGITS], 16) * _SEATS_OF_A_CALL
        self._last = 0
        self._careful_tasks = 0
        self._file = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self._file)

    @contextmanager
    def taken(self, let_go: Callable[[], None], most_seconds: float = _MOST_WAIT_SECONDS) -> Iterator[None]:
        """Inside, one seat is ours; waits for it, and gives up with a `StoreError` that a retry may mend.

        Args:
            let_go: Gives back what this process keeps from task to task: called before it waits, and behind the tasks
                after that, for others need the memory then.
            most_seconds: To wait.
        """
        seat = self._free()
        if seat is None:
            self._careful_tasks = _CAREFUL_TASKS
            let_go()
            seat = self._awaited(most_seconds)
        try:
            yield
        finally:
            if self._careful_tasks:
                self._careful_tasks -= 1
                let_go()
            self._lock(fcntl.F_UNLCK, seat)

    def _free(self) -> int | None:
        """A seat that is ours from now on, that of last time if it is free; None when all are taken."""
        others = (seat for seat in range(self._seats) if seat != self._last)
        for seat in (self._last, *others):
            if self._lock(fcntl.F_WRLCK, seat):
                self._last = seat
                return seat
        return None

    def _awaited(self, most_seconds: float) -> int:
        began, has_told = time.monotonic(), False
        while (seat := self._free()) is None:
            waited = time.monotonic() - began
            if waited > most_seconds:
                raise StoreError(
                    f"{self._seats} tasks of this host run a join, among as many its memory was divided; one more has "
                    f"waited {most_seconds:g} s",
                    code="host_is_full",
                    next_move="start the query again now that all executors are there, or bound them (docs/tuning.md)",
                    retryable=True,
                    seats=self._seats,
                )
            if waited > _TELL_SECONDS and not has_told:
                has_told = True
                _LOG.warning(
                    "%d tasks of this host run a join, among as many its memory was divided: one more waits. "
                    "Start the query when all executors are there, or bound them (docs/tuning.md)",
                    self._seats,
                )
            time.sleep(_POLL_SECONDS)
        return seat

    def _lock(self, kind: int, seat: int) -> bool:
        """Whether the lock could be changed; it belongs to this open file, and ends with the process."""
        try:
            request = struct.pack("hhqqi4x", kind, os.SEEK_SET, self._first + seat, 1, 0)
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, request)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True


__all__ = ["HostSeats"]
