"""Keys of any type as 64-bit codes: the same for equal keys in every process, version and machine.

The mixing is that of XXH64 for short input (Yann Collet): eight bytes a round, then a finaliser in which
each input bit moves half of the output bits. Codes are written into stores: a change here is a new format.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit, types

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)

_READ_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_READ_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_HASHES = types.Array(types.uint64, 1, "C")


def hash_columns(columns: Sequence["pa.Array[Any]"], seed: int) -> Int64s:
    """One code a row, from the values of all columns together; what NULLs get is not defined.

    Columns are 64-bit integers, or strings, binaries and fixed-size values, taken as their bytes. The
    length of a part is hashed too, so ("ab", "c") and ("a", "bc") differ.

    >>> names = pa.array(["anvil", "bolt", "anvil"])
    >>> codes = hash_columns([names], seed=0)
    >>> bool(codes[0] == codes[2]), bool(codes[0] == codes[1])
    (True, False)
    """
    hashes = np.full(len(columns[0]), seed, dtype=np.uint64)
    for column in columns:
        if pa.types.is_integer(column.type):
            hash_numbers(cast("Int64s", column.fill_null(0).to_numpy()), hashes)
        else:
            hash_bytes(*_bytes_of(column), hashes)
    return hashes.view(np.int64)


def _bytes_of(column: "pa.Array[Any]") -> tuple[npt.NDArray[np.uint8], Int64s]:
    """The bytes of all values, and where each starts; the last start is the end."""
    kind, rows, skipped = column.type, len(column), column.offset
    buffers = column.buffers()
    content = np.frombuffer(memoryview(buffers[-1] or b""), dtype=np.uint8)
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
        width = kind.bit_width // 8
        return content, (np.arange(rows + 1, dtype=np.int64) + skipped) * width
    if rows == 0:
        return content, np.zeros(1, dtype=np.int64)
    is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    width_type = np.dtype(np.int64 if is_large else np.int32)
    offsets = np.frombuffer(memoryview(cast("pa.Buffer", buffers[1])), dtype=width_type)
    return content, offsets[skipped : skipped + rows + 1].astype(np.int64, copy=False)


@njit(types.uint64(types.uint64, types.int64), cache=True, inline="always")
def _turned(bits: np.uint64, places: int) -> np.uint64:
    return (bits << np.uint64(places)) | (bits >> np.uint64(64 - places))


@njit(types.uint64(types.uint64, types.uint64), cache=True, inline="always")
def _with_word(h: np.uint64, word: np.uint64) -> np.uint64:
    h ^= _turned(word * _P2, 31) * _P1
    return _turned(h, 27) * _P1 + _P4


@njit(types.uint64(types.uint64), cache=True, inline="always")
def _finished(h: np.uint64) -> np.uint64:
    h ^= h >> np.uint64(33)
    h *= _P2
    h ^= h >> np.uint64(29)
    h *= _P3
    return h ^ (h >> np.uint64(32))


@njit(types.void(_READ_INT64S, _HASHES), cache=True)
def hash_numbers(values: Int64s, hashes: UInt64s) -> None:
    """Mix each value into the hash of its row."""
    for i in range(len(values)):
        hashes[i] = _finished(_with_word(hashes[i] + _P1, np.uint64(values[i])))


@njit(types.void(_READ_BYTES, _READ_INT64S, _HASHES), cache=True)
def hash_bytes(content: npt.NDArray[np.uint8], start: Int64s, hashes: UInt64s) -> None:
    """Mix the bytes from `start[i]` to `start[i + 1]`, and their number, into the hash of row i."""
    for i in range(len(hashes)):
        at, end = start[i], start[i + 1]
        h = hashes[i] + np.uint64(end - at) * _P3
        while at < end:
            word = np.uint64(0)
            most = min(8, end - at)
            for b in range(most):
                word |= np.uint64(content[at + b]) << np.uint64(8 * b)
            h = _with_word(h, word)
            at += 8
        hashes[i] = _finished(h)


__all__ = ["Bools", "Int64s", "hash_columns"]
