"""The loop of a thread that puts output together and never asks for Python's lock, and those who give it work."""

import platform
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # ships no types
from numba import carray as untyped_carray  # type: ignore[attr-defined]  # numba does not list it
from numba import njit, types
from numba.extending import intrinsic

from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.side_by_side_kernels import put_beside_batch, put_beside_rows
from tidemill.master.addresses import load_shared, store_shared
from tidemill.master.board_kernels import now_ns, sleep_us
from tidemill.master.row_kernels import BYTES, INT64S, READ_BYTES, READ_FACTS, READ_INT64S, UInt8s

JOBS = 16
"""That may be asked for at a time."""
ASKED, DONE, STOPS, SLEEPS, AWAITED = range(0, 40, 8)
"""Words of the state, a cache line each: jobs asked for, jobs done, whether to end, who sleeps."""
STATE_WORDS = 40
_KIND, NANOSECONDS, _FIRST = 0, 1, 2
_BATCH, _ROWS = range(2)
_ARRAY_WORDS = 3  # address, length, width
JOB_WORDS = _FIRST + 8 * _ARRAY_WORDS
_TABLE = types.Array(types.int64, 2, "C")

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)
_WAIT, _WAKE = 128, 129  # among the threads of one process
_LOW_HALF = 0xFFFFFFFF
_LOOKS = 2000  # at a word before a thread sleeps: 20 µs, less than it takes to wake up

_syscall: Any = types.ExternalFunction(
    "syscall",
    types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64),
)


carray: Any = untyped_carray


def _pointer_to(kind: Any) -> Any:
    """An intrinsic that makes an address a pointer to numbers of a kind."""
    pointer_type: Any = types.CPointer

    @intrinsic
    def pointer(_: Any, address: Any) -> Any:  # noqa: ARG001 - numba tells arguments apart by name
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return pointer_type(kind)(types.int64), generate

    return pointer


def _pauser() -> Any:
    """An intrinsic that tells the processor of a loop which waits."""

    @intrinsic
    def pause(_: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, __: Any) -> Any:
            if platform.machine() == "x86_64":
                kind = ir.FunctionType(ir.VoidType(), [])
                builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
            return context.get_dummy_value()

        return types.void(), generate

    return pause


_pointer, _byte_pointer, _pause = _pointer_to(types.int64), _pointer_to(types.uint8), _pauser()


@njit(types.void(types.int64, types.int64, types.int64), cache=True)
def _sleep_while(word: int, value: int, most_ms: int) -> None:
    """Sleep as long as a word has this value, but not for ever."""
    if _FUTEX < 0:
        sleep_us(np.uint32(50))
        return
    until = np.zeros(2, dtype=np.int64)
    until[0], until[1] = most_ms // 1000, (most_ms % 1000) * 1_000_000
    _syscall(_FUTEX, word, _WAIT, value & _LOW_HALF, np.int64(until.ctypes.data), 0, 0)


@njit(types.void(types.int64), cache=True)
def _wake(word: int) -> None:
    if _FUTEX >= 0:
        _syscall(_FUTEX, word, _WAKE, 1, 0, 0, 0)


@njit(types.int64(types.int64, types.int64), cache=True)
def _look_for_more(word: int, value: int) -> int:
    """What a word has when it is no more this value, or after so many looks."""
    found = load_shared(word)
    for _ in range(_LOOKS):
        if found != value:
            break
        _pause()
        found = load_shared(word)
    return found


@njit(types.void(READ_INT64S), cache=True)
def _do(job: Int64s) -> None:
    head = carray(_pointer(job[2]), (job[3], 2))
    if job[_KIND] == _BATCH:
        put_beside_batch(
            head,
            carray(_pointer(job[5]), (job[6], job[7])),
            carray(_pointer(job[8]), (job[9],)),
            carray(_byte_pointer(job[11]), (job[12],)),
            carray(_pointer(job[14]), (job[15],)),
            carray(_pointer(job[17]), (job[18], job[19])),
            carray(_byte_pointer(job[20]), (job[21],)),
        )
    else:
        put_beside_rows(
            head,
            carray(_byte_pointer(job[5]), (job[6],)),
            carray(_pointer(job[8]), (job[9],)),
            carray(_pointer(job[11]), (job[12], job[13])),
            carray(_byte_pointer(job[14]), (job[15],)),
            carray(_pointer(job[17]), (job[18],)),
            carray(_pointer(job[20]), (job[21], job[22])),
            carray(_byte_pointer(job[23]), (job[24],)),
        )


@njit(types.void(INT64S, _TABLE), cache=True, nogil=True)
def work(state: Int64s, jobs: Int64s) -> None:
    """Do what is asked for, in order, until told to end."""
    base, done = state.ctypes.data, 0
    clock = np.zeros(2, dtype=np.int64)
    while True:
        if _look_for_more(base + 8 * ASKED, done) == done:
            if load_shared(base + 8 * STOPS):
                return
            store_shared(base + 8 * SLEEPS, 1)
            _sleep_while(base + 8 * ASKED, done, 1000)
            store_shared(base + 8 * SLEEPS, 0)
            continue
        job = jobs[done % JOBS]
        started = now_ns(clock)
        _do(job)
        job[NANOSECONDS] = now_ns(clock) - started
        done += 1
        store_shared(base + 8 * DONE, done)
        if load_shared(base + 8 * AWAITED):
            _wake(base + 8 * DONE)


@njit(types.boolean(INT64S, types.int64, types.int64), cache=True, nogil=True)
def wait_for(state: Int64s, job: int, most_ms: int) -> bool:
    """Whether a job is done, after waiting for it."""
    word, awaited = state.ctypes.data + 8 * DONE, state.ctypes.data + 8 * AWAITED
    done = load_shared(word)
    if done <= job:
        done = _look_for_more(word, done)
    if done <= job:
        store_shared(awaited, 1)
        done = load_shared(word)
        if done <= job:
            _sleep_while(word, done, most_ms)
        store_shared(awaited, 0)
        done = load_shared(word)
    return bool(done > job)


@njit(types.void(INT64S), cache=True)
def stop(state: Int64s) -> None:
    """Tell the thread to end when all is done that was asked for."""
    store_shared(state.ctypes.data + 8 * STOPS, 1)
    _wake(state.ctypes.data + 8 * ASKED)


@njit(types.void(INT64S), cache=True, inline="always")
def _asked(state: Int64s) -> None:
    base = state.ctypes.data
    store_shared(base + 8 * ASKED, load_shared(base + 8 * ASKED) + 1)
    if load_shared(base + 8 * SLEEPS):
        _wake(base + 8 * ASKED)


@njit(
    types.void(
        INT64S, _TABLE, READ_FACTS, READ_FACTS, READ_INT64S, READ_BYTES, READ_INT64S, READ_FACTS, BYTES
    ),
    cache=True,
)
def ask_batch(
    state: Int64s,
    jobs: Int64s,
    head: Int64s,
    sources: Int64s,
    numbers: Int64s,
    rows: UInt8s,
    at: Int64s,
    columns: Int64s,
    room: UInt8s,
) -> None:
    """Ask for `put_beside_batch`; the caller keeps all arrays until it is done."""
    job = jobs[state[ASKED] % JOBS]
    job[_KIND] = _BATCH
    job[2], job[3] = head.ctypes.data, len(head)
    job[5], job[6], job[7] = sources.ctypes.data, len(sources), sources.shape[1]
    job[8], job[9] = numbers.ctypes.data, len(numbers)
    job[11], job[12] = rows.ctypes.data, len(rows)
    job[14], job[15] = at.ctypes.data, len(at)
    job[17], job[18], job[19] = columns.ctypes.data, len(columns), columns.shape[1]
    job[20], job[21] = room.ctypes.data, len(room)
    _asked(state)


@njit(
    types.void(
        INT64S, _TABLE, READ_FACTS, READ_BYTES, READ_INT64S, READ_FACTS, READ_BYTES, READ_INT64S, READ_FACTS, BYTES
    ),
    cache=True,
)  # fmt: skip
def ask_rows(
    state: Int64s,
    jobs: Int64s,
    head: Int64s,
    stream_rows: UInt8s,
    stream_at: Int64s,
    stream_columns: Int64s,
    rows: UInt8s,
    at: Int64s,
    columns: Int64s,
    room: UInt8s,
) -> None:
    """Ask for `put_beside_rows`; the caller keeps all arrays until it is done."""
    job = jobs[state[ASKED] % JOBS]
    job[_KIND] = _ROWS
    job[2], job[3] = head.ctypes.data, len(head)
    job[5], job[6] = stream_rows.ctypes.data, len(stream_rows)
    job[8], job[9] = stream_at.ctypes.data, len(stream_at)
    job[11], job[12], job[13] = stream_columns.ctypes.data, len(stream_columns), stream_columns.shape[1]
    job[14], job[15] = rows.ctypes.data, len(rows)
    job[17], job[18] = at.ctypes.data, len(at)
    job[20], job[21], job[22] = columns.ctypes.data, len(columns), columns.shape[1]
    job[23], job[24] = room.ctypes.data, len(room)
    _asked(state)


__all__ = [
    "DONE",
    "JOBS",
    "JOB_WORDS",
    "NANOSECONDS",
    "STATE_WORDS",
    "ask_batch",
    "ask_rows",
    "stop",
    "wait_for",
    "work",
]
