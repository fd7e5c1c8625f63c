"""Loads, stores and copies at addresses, for compiled loops that meet many buffers in one call.

No address need be a multiple of anything.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # ships no types
from numba import njit, types
from numba.extending import intrinsic

Address = int | np.uintp

SPILL_BYTES = 32


def _mover(size: int) -> Callable[[Address, Address], None]:
    """An intrinsic that copies exactly `size` bytes between two addresses."""

    @intrinsic
    def move(_: Any, to: Any, come_from: Any) -> Any:  # noqa: ARG001 - numba tells arguments apart by name
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            pointer = ir.VectorType(ir.IntType(8), size).as_pointer()
            target, source = (builder.inttoptr(argument, pointer) for argument in arguments)
            builder.store(builder.load(source, align=1), target, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return cast("Callable[[Address, Address], None]", move)


def _loader(bits: int) -> Callable[[int], int]:
    """An intrinsic that gives the number, without sign if it is short, at an address."""

    @intrinsic
    def load(_: Any, address: Any) -> Any:  # noqa: ARG001 - as above
        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            return builder.zext(builder.load(pointer, align=1), ir.IntType(64))

        return types.int64(types.int64), generate

    return cast("Callable[[int], int]", load)


def _storer(bits: int) -> Callable[[int, int], None]:
    """An intrinsic that writes the low bits of a number to an address."""

    @intrinsic
    def store(_: Any, address: Any, value: Any) -> Any:  # noqa: ARG001 - as above
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            pointer = builder.inttoptr(arguments[0], kind.as_pointer())
            builder.store(builder.trunc(arguments[1], kind), pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return cast("Callable[[int, int], None]", store)


def _digits_storer() -> Callable[[int, int], None]:
    """An intrinsic that writes sixteen digits to an address: the halves of the bytes of a word, the lowest first."""

    @intrinsic
    def store(_: Any, address: Any, word: Any) -> Any:  # noqa: ARG001 - as above
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            eight, sixteen = (ir.VectorType(ir.IntType(8), size) for size in (8, 16))
            order = ir.Constant(ir.VectorType(ir.IntType(32), 16), [8 * (n % 2) + n // 2 for n in range(16)])
            word = builder.bitcast(arguments[1], eight)
            lower = builder.and_(word, ir.Constant(eight, [0x0F] * 8))
            upper = builder.lshr(word, ir.Constant(eight, [4] * 8))
            digits = builder.or_(
                builder.shuffle_vector(lower, upper, order), ir.Constant(sixteen, [ord("0")] * 16)
            )
            builder.store(digits, builder.inttoptr(arguments[0], sixteen.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return cast("Callable[[int, int], None]", store)


def _float_storer() -> Callable[[int, float], None]:
    """An intrinsic that writes a float of eight bytes to an address."""

    @intrinsic
    def store(_: Any, address: Any, value: Any) -> Any:  # noqa: ARG001 - as above
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.DoubleType().as_pointer())
            builder.store(arguments[1], pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.float64), generate

    return cast("Callable[[int, float], None]", store)


def _fetcher(*, writes: bool) -> Callable[[int], None]:
    """An intrinsic that asks for the cache line at an address, without waiting for it; any address will do."""

    @intrinsic
    def fetch(_: Any, address: Any) -> Any:  # noqa: ARG001 - as above
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
            prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
            read, keep, data = (number(flag) for flag in (int(writes), 3, 1))
            builder.call(prefetch, [builder.inttoptr(arguments[0], pointer), read, keep, data])
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return cast("Callable[[int], None]", fetch)


def _shared_loader() -> Callable[[int], int]:
    """An intrinsic that gives the 64-bit number at an address as another process has written it, after all loads before it."""

    @intrinsic
    def load(_: Any, address: Any) -> Any:  # noqa: ARG001 - as above
        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            builder.fence("seq_cst")
            pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
            return builder.load_atomic(pointer, "seq_cst", 8)

        return types.int64(types.int64), generate

    return cast("Callable[[int], int]", load)


def _shared_storer(bits: int) -> Callable[[int, int], None]:
    """An intrinsic that writes a number to an address, for other processes: after all stores before it, before all after it."""

    @intrinsic
    def store(_: Any, address: Any, value: Any) -> Any:  # noqa: ARG001 - as above
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            pointer = builder.inttoptr(arguments[0], kind.as_pointer())
            value = arguments[1] if bits == 64 else builder.trunc(arguments[1], kind)
            builder.store_atomic(value, pointer, "seq_cst", bits // 8)
            builder.fence("seq_cst")
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return cast("Callable[[int, int], None]", store)


move_32, move_16, move_8, move_4, move_2, move_1 = (_mover(size) for size in (32, 16, 8, 4, 2, 1))
load_8, load_32, load_64 = (_loader(bits) for bits in (8, 32, 64))
store_8, store_16, store_32, store_64 = (_storer(bits) for bits in (8, 16, 32, 64))
store_float, store_digits = _float_storer(), _digits_storer()
fetch = _fetcher(writes=False)
fetch_to_write = _fetcher(writes=True)
"""Where another core may have read it: it need not be asked again when the line is written to."""
load_shared = _shared_loader()
store_shared_32, store_shared = (_shared_storer(bits) for bits in (32, 64))


@njit(types.void(types.int64, types.int64, types.int64), cache=True, inline="always")
def move_bytes(to: Address, come_from: Address, size: int) -> None:
    """Copy `size` bytes between two addresses that do not overlap."""
    if size >= 16:
        done = 0
        while done + 16 <= size:
            move_16(to + done, come_from + done)
            done += 16
        if done < size:
            move_16(to + size - 16, come_from + size - 16)
    elif size >= 8:
        move_8(to, come_from)
        move_8(to + size - 8, come_from + size - 8)
    elif size >= 4:
        move_4(to, come_from)
        move_4(to + size - 4, come_from + size - 4)
    elif size >= 2:
        move_2(to, come_from)
        move_2(to + size - 2, come_from + size - 2)
    elif size == 1:
        move_1(to, come_from)


@njit(types.void(types.int64, types.int64, types.int64, types.int64), cache=True, inline="always")
def spill_bytes(to: int, come_from: int, size: int, readable_end: int) -> None:
    """Copy `size` bytes and up to 32 more, unless those cannot be read."""
    if come_from + size + SPILL_BYTES > readable_end:
        move_bytes(to, come_from, size)
    else:
        move_32(to, come_from)
        done = SPILL_BYTES
        while done < size:
            move_32(to + done, come_from + done)
            done += SPILL_BYTES


__all__ = [
    "SPILL_BYTES",
    "fetch",
    "fetch_to_write",
    "load_8",
    "load_32",
    "load_64",
    "load_shared",
    "move_4",
    "move_8",
    "move_bytes",
    "spill_bytes",
    "store_8",
    "store_16",
    "store_32",
    "store_64",
    "store_digits",
    "store_float",
    "store_shared",
    "store_shared_32",
]
