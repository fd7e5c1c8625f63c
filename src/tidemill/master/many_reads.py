"""Many reads asked for with one call to the kernel: Linux's asynchronous I/O, for files that pass by the page cache.

A read of its own costs a call and, on a virtual machine, a trip to its host and back: 50 to 75 µs of processor for 16 KiB.
Asked for by the dozen they cost 8, and one thread gets 56,000 of them a second, where sixteen threads got 40,000.
"""

import platform
import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

Int64s = npt.NDArray[np.int64]

MOST_AT_ONCE = 64
_READ_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
"""Numbers of io_setup, io_destroy, io_submit, io_getevents."""
_SETUP, _DESTROY, _SUBMIT, _GET_EVENTS = _CALLS.get(platform.machine(), (-1, -1, -1, -1))
_REQUEST_WORDS, _EVENT_WORDS = 8, 4
# Words of a request, as the kernel has them: who it is, what and from which file, where to, how much, from where.
_WHO, _FILE, _TARGET, _BYTES, _OFFSET = 0, 2, 3, 4, 5
_GOT = 2  # of an event, whose first word is who it was: bytes read, or minus an error

_syscall: Any = types.ExternalFunction(
    "syscall", types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64)
)


@njit(types.int64(types.uintp), cache=True)
def _set_up(context: Any) -> int:
    return int(_syscall(_SETUP, MOST_AT_ONCE, np.int64(context), 0, 0, 0))


@njit(types.int64(types.int64), cache=True)
def _destroy(context: int) -> int:
    return int(_syscall(_DESTROY, context, 0, 0, 0, 0))


@njit(
    types.int64(types.int64, _READ_INT64S, _READ_INT64S, _READ_INT64S, _READ_INT64S, types.int64),
    cache=True, nogil=True,
)  # fmt: skip
def read_many(
    context: int, handles: Int64s, offsets: Int64s, places: Int64s, sizes: Int64s, target: int
) -> int:
    """How many of the first stretches were read in full, all of them as a rule; none is under way any more.

    Args:
        context: Of a `Contexts`, which nobody else uses meanwhile.
        handles: File of each stretch.
        offsets: Where it begins there.
        places: Byte behind `target` at which it goes.
        sizes: Its bytes.
        target: An address.
    """
    requests = np.zeros((MOST_AT_ONCE, _REQUEST_WORDS), dtype=np.int64)
    events = np.zeros((MOST_AT_ONCE, _EVENT_WORDS), dtype=np.int64)
    pointers = np.zeros(MOST_AT_ONCE, dtype=np.int64)
    first = 0
    while first < len(handles):
        count = min(MOST_AT_ONCE, len(handles) - first)
        for k in range(count):
            i = first + k
            requests[k, _WHO], requests[k, _FILE] = i, handles[i] << 32
            requests[k, _TARGET], requests[k, _BYTES] = target + places[i], sizes[i]
            requests[k, _OFFSET] = offsets[i]
            pointers[k] = requests.ctypes.data + 8 * _REQUEST_WORDS * k
        begun = int(_syscall(_SUBMIT, context, count, np.int64(pointers.ctypes.data), 0, 0))
        if begun <= 0:
            return first
        left, whole = begun, True
        while left > 0:
            # A number below zero is an interruption: what was begun must end, for it writes to memory.
            ended = int(_syscall(_GET_EVENTS, context, 1, left, np.int64(events.ctypes.data), 0))
            for k in range(max(0, ended)):
                whole &= events[k, _GOT] == sizes[events[k, 0]]
            left -= max(0, ended)
        if not whole:
            return first
        first += begun
    return first


class ReadsAsked:
    """How many reads this process asked for in this way: the kernel does not count them among calls that read."""

    def __init__(self) -> None:
        self.reads = 0
        self._lock = threading.Lock()

    def add(self, reads: int) -> None:
        with self._lock:
            self.reads += reads


READS_ASKED = ReadsAsked()


class Contexts:
    """What the kernel keeps for those who ask for many reads; as many as read at a time, made when first needed."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._is_possible = _SETUP >= 0
        weakref.finalize(self, _destroy_all, self._free)

    def take(self) -> int:
        """One that nobody uses, for `give_back`; 0 where there is none to be had."""
        if self._free:
            return self._free.pop()
        made = np.zeros(1, dtype=np.int64)
        if self._is_possible and _set_up(made.ctypes.data) != 0:
            self._is_possible = False  # not allowed, or too many on this machine
        return int(made[0])

    def give_back(self, context: int, reads: int) -> None:
        """After so many reads were asked for with it."""
        if context:
            READS_ASKED.add(reads)
            self._free.append(context)

    def close(self) -> None:
        _destroy_all(self._free)


def _destroy_all(contexts: list[int]) -> None:
    while contexts:
        _destroy(contexts.pop())


__all__ = ["MOST_AT_ONCE", "READS_ASKED", "Contexts", "read_many"]
