"""Reading neighbouring regions into slots, and what processes tell each other about them, without the interpreter."""

from typing import Any

import numpy as np
from numba import njit, types

from tidemill.master.addresses import load_shared, store_shared
from tidemill.master.board import AHEAD, BEHIND
from tidemill.master.page_kernels import Int64s, UInt8s, UInt16s, UInt32s, UInt64s, is_whole

_READ_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_INT64S = types.Array(types.int64, 1, "C")
_FLAGS = types.Array(types.uint8, 2, "C")
_PLAN = types.Array(types.int64, 2, "C")
_READ_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_READ_UINT32S = types.Array(types.uint32, 1, "C", readonly=True)
_READ_UINT16S = types.Array(types.uint16, 1, "C", readonly=True)

_preadv: Any = types.ExternalFunction(
    "preadv", types.int64(types.int32, types.uintp, types.int32, types.int64)
)
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))
sleep_us: Any = types.ExternalFunction("usleep", types.int32(types.uint32))

HANDLE, OFFSET, BYTES, NUMBER, WAS_READ = range(5)
"""Of a region: its file, where it begins there, its bytes, its number, and whether it was read."""
PLAN_WIDTH = 5
_CLOCK_MONOTONIC = 1
_MOST_RUN = 4
"""Regions read at once if they are neighbours: 1 MiB, beyond which the disks measured get no faster."""
POLL_US = 60
_AT_WORK_NS = 5_000_000
_PATIENCE_NS = 3_000_000
CLAIM_NS = 30_000_000
"""A read that takes longer has died with its process, or is not worth waiting for."""


@njit(types.int64(_INT64S), cache=True, inline="always")
def now_ns(clock: Int64s) -> int:
    """Nanoseconds on a clock that all processes of the host share."""
    _clock_gettime(np.int32(_CLOCK_MONOTONIC), np.uintp(clock.ctypes.data))
    return int(clock[0] * 1_000_000_000 + clock[1])


@njit(types.int64(_INT64S, _INT64S, types.int64), cache=True, inline="always")
def posted_slot(posted: Int64s, tickets: Int64s, number: int) -> int:
    """Where a region is posted, as ticket x slots + slot; 0 if it is not, or was and is no more."""
    entry = load_shared(posted.ctypes.data + 8 * number)
    if entry <= 0:
        return 0
    slots = len(tickets)
    return entry if load_shared(tickets.ctypes.data + 8 * (entry % slots)) == entry // slots else 0


@njit(types.boolean(_INT64S, _INT64S, types.int64), cache=True, inline="always")
def is_claimed(claimed: Int64s, clock: Int64s, number: int) -> bool:
    """Whether someone has just begun to read a region."""
    age = now_ns(clock) - load_shared(claimed.ctypes.data + 8 * number)
    return 0 <= age < CLAIM_NS


@njit(
    types.int64(_PLAN, types.int64, types.int64, _INT64S, _INT64S, _INT64S, _INT64S, types.boolean[:]),
    cache=True, nogil=True,
)  # fmt: skip
def neighbours(
    plan: Int64s,
    first: int,
    most: int,
    posted: Int64s,
    claimed: Int64s,
    tickets: Int64s,
    clock: Int64s,
    is_done: "np.typing.NDArray[np.bool_]",
) -> int:
    """How many regions from the first on lie side by side and nobody else has read or reads; claims them."""
    count = 1
    while (
        count < min(most, _MOST_RUN)
        and first + count < len(plan)
        and not is_done[first + count]
        and plan[first + count, HANDLE] == plan[first, HANDLE]
        and plan[first + count, OFFSET] == plan[first + count - 1, OFFSET] + plan[first + count - 1, BYTES]
        and (
            not len(posted)
            or (
                posted_slot(posted, tickets, plan[first + count, NUMBER]) == 0
                and not is_claimed(claimed, clock, plan[first + count, NUMBER])
            )
        )
    ):
        count += 1
    if len(posted):
        for i in range(first, first + count):
            store_shared(claimed.ctypes.data + 8 * plan[i, NUMBER], now_ns(clock))
    return count


@njit(
    types.void(
        types.int64, types.int64, types.int64, _INT64S, _FLAGS, _INT64S, _INT64S, types.int64, _INT64S
    ),
    cache=True, nogil=True,
)  # fmt: skip
def wait_for_others(
    slot: int,
    count: int,
    slots: int,
    held: Int64s,
    wanted: UInt8s,
    beats: Int64s,
    places: Int64s,
    seat: int,
    clock: Int64s,
) -> None:
    """Wait while someone at work still wants what some slots hold and is near, but not for long.

    Near is who comes to them next, or passed them while they were read. Two that waited for each other, though only
    one was behind, took 15 ms where 3 are enough.
    """
    began = now_ns(clock)
    for i in range(slot, slot + count):
        for other in range(len(beats)):
            while (
                other != seat
                and wanted[other, held[i]]
                and -BEHIND * slots <= held[i] - load_shared(places.ctypes.data + 8 * other) <= AHEAD * slots
                and now_ns(clock) - load_shared(beats.ctypes.data + 8 * other) < _AT_WORK_NS
                and now_ns(clock) - began < _PATIENCE_NS
            ):
                sleep_us(np.uint32(POLL_US))


@njit(
    types.boolean(_PLAN, types.int64, types.int64, types.int64, types.int64, _INT64S),
    cache=True, nogil=True,
)  # fmt: skip
def read_run(plan: Int64s, first: int, count: int, target: int, stride_bytes: int, vector: Int64s) -> bool:
    """Whether neighbouring regions could be read in full, each to the next place `stride_bytes` on."""
    done, total = np.int64(0), np.int64(0)
    for i in range(first, first + count):
        total += plan[i, BYTES]
    while done < total:
        parts, passed = 0, np.int64(0)
        for i in range(count):
            size = plan[first + i, BYTES]
            skip = min(max(done - passed, np.int64(0)), size)
            passed += size
            if skip < size:
                vector[2 * parts] = target + i * stride_bytes + skip
                vector[2 * parts + 1] = size - skip
                parts += 1
        got = _preadv(
            np.int32(plan[first, HANDLE]),
            np.uintp(vector.ctypes.data),
            np.int32(parts),
            plan[first, OFFSET] + done,
        )
        if got <= 0:
            return False
        done += got
    for i in range(first, first + count):
        plan[i, WAS_READ] = 1
    return True


@njit(
    types.boolean(_READ_WORDS, _READ_INT64S, _READ_UINT32S, _READ_UINT16S, _READ_WORDS),
    cache=True, nogil=True,
)  # fmt: skip
def is_as_written(words: UInt64s, begin: Int64s, block: UInt32s, file: UInt16s, salts: UInt64s) -> bool:
    """Whether every page of a region is what was written there."""
    for page in range(len(block)):
        if not is_whole(words, begin[page], begin[page + 1], salts[file[page]], block[page]):
            return False
    return True


__all__ = [
    "BYTES",
    "CLAIM_NS",
    "HANDLE",
    "NUMBER",
    "OFFSET",
    "PLAN_WIDTH",
    "POLL_US",
    "WAS_READ",
    "is_as_written",
    "is_claimed",
    "neighbours",
    "now_ns",
    "posted_slot",
    "read_run",
    "sleep_us",
    "wait_for_others",
]
