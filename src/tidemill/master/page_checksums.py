"""Checksums of pages: the one that pages get now, and the one of pages written before format 6.

Both fold words into lanes by rounds that map a word, and a lane, one to one: so no change within one word can go unseen,
and a change of several passes once in 2**64. Both start from a seed that stands for the file and the place in it, so a
page from elsewhere fails too.

`line_checksum` takes lines of 32 words, one a lane, and mixes a word with `lane = (x ^ x >> 32) * 0x9E3779B1` where `x = lane +
word`. The shift comes before the multiplication, which alone would leave a change of the highest bit one of the highest bit, for
one in the next line to undo. It is written in vectors of LLVM, since its loop vectoriser leaves such a loop alone; they
become whatever a processor has. GB/s of a 16 KiB page in the cache, against the older one's: 28 for 10 with AVX-512, 29
for 10 with AVX2, 16 for 8 with SSE2. The factor has 32 bits, so two short multiplications make the long one that AVX2 lacks.

`word_checksum` is XXH64's round on eight lanes, two multiplications a word.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]  # ships no types
from numba import njit, types
from numba.extending import intrinsic

UInt64s = npt.NDArray[np.uint64]

LINE_WORDS = 32
_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_LINE_FACTOR = 0x9E3779B1
_WORD_MASK = 2**64 - 1
_READ_WORDS = types.Array(types.uint64, 1, "C", readonly=True)


@njit(types.uint64(types.uint64, types.uint64), cache=True, inline="always")
def seed_of(salt: np.uint64, block: np.uint64) -> np.uint64:
    """What the checksum of a page starts from: the salt of its file, and its place there."""
    return salt ^ (np.uint64(block) * _P3 + _P1)


def _line_folder() -> Callable[[int, int, np.uint64], np.uint64]:
    """An intrinsic that folds lines, at least one, into a number; the first word counts as zero."""

    @intrinsic
    def fold(_: Any, address: Any, lines: Any, seed: Any) -> Any:  # noqa: ARG001 - numba tells arguments apart by name
        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            word, index = ir.IntType(64), ir.IntType(32)
            line = ir.VectorType(word, LINE_WORDS)
            address, lines, seed = arguments
            start = line(ir.Undefined)
            for lane in range(LINE_WORDS):
                own = builder.add(seed, word(lane * int(_P2) & _WORD_MASK))
                if lane == 0:
                    own = builder.sub(
                        own, builder.load(builder.inttoptr(address, word.as_pointer()), align=8)
                    )
                start = builder.insert_element(start, own, index(lane))
            before, loop, after = (
                builder.block,
                *(builder.append_basic_block(name) for name in ("line", "end")),
            )
            builder.branch(loop)
            builder.position_at_end(loop)
            place, left, lanes = builder.phi(word), builder.phi(word), builder.phi(line)
            mixed = builder.add(lanes, builder.load(builder.inttoptr(place, line.as_pointer()), align=8))
            mixed = builder.xor(mixed, builder.lshr(mixed, line([32] * LINE_WORDS)))
            mixed = builder.mul(mixed, line([_LINE_FACTOR] * LINE_WORDS))
            next_place, next_left = builder.add(place, word(8 * LINE_WORDS)), builder.sub(left, word(1))
            for number, first, then in (
                (place, address, next_place),
                (left, lines, next_left),
                (lanes, start, mixed),
            ):
                number.add_incoming(first, before)
                number.add_incoming(then, loop)
            builder.cbranch(builder.icmp_signed(">", next_left, word(0)), loop, after)
            builder.position_at_end(after)
            total = lines
            for lane in range(LINE_WORDS):
                own = builder.mul(builder.extract_element(mixed, index(lane)), word(int(_P2)))
                total = builder.add(total, own)
                total = builder.or_(builder.shl(total, word(31)), builder.lshr(total, word(33)))
                total = builder.mul(total, word(int(_P1)))
            return total

        return types.uint64(types.int64, types.int64, types.uint64), generate

    return cast("Callable[[int, int, np.uint64], np.uint64]", fold)


_fold_lines = _line_folder()


@njit(types.uint64(types.uint64), cache=True, inline="always")
def _finished(total: np.uint64) -> np.uint64:
    total ^= total >> np.uint64(29)
    total *= _P3
    return total ^ (total >> np.uint64(32))


@njit(types.uint64(_READ_WORDS, types.int64, types.int64, types.uint64), cache=True, nogil=True)
def line_checksum(words: UInt64s, begin: int, lines: int, seed: np.uint64) -> np.uint64:
    """Of so many lines, at least one, of words from `begin` on; the first word, where it is kept, counts as zero."""
    return _finished(_fold_lines(words.ctypes.data + 8 * begin, lines, seed))


@njit(types.uint64(types.uint64, types.uint64), cache=True, inline="always")
def _mixed(lane: np.uint64, word: np.uint64) -> np.uint64:
    lane += word * _P2
    return ((lane << np.uint64(31)) | (lane >> np.uint64(33))) * _P1


@njit(types.uint64(_READ_WORDS, types.int64, types.int64, types.uint64), cache=True, nogil=True)
def word_checksum(words: UInt64s, begin: int, end: int, seed: np.uint64) -> np.uint64:
    """Of the words from `begin` to before `end`."""
    a, b, c, d = seed, seed + _P1, seed + _P2, seed + _P3
    e, f, g, h = ~a, ~b, ~c, ~d
    at = begin
    while at + 8 <= end:
        a, b = _mixed(a, words[at]), _mixed(b, words[at + 1])
        c, d = _mixed(c, words[at + 2]), _mixed(d, words[at + 3])
        e, f = _mixed(e, words[at + 4]), _mixed(f, words[at + 5])
        g, h = _mixed(g, words[at + 6]), _mixed(h, words[at + 7])
        at += 8
    total = np.uint64(end - begin)
    while at < end:
        total = _mixed(total, words[at])
        at += 1
    for lane in (a, b, c, d, e, f, g, h):
        total = _mixed(total, lane)
    return _finished(total)


__all__ = ["LINE_WORDS", "line_checksum", "seed_of", "word_checksum"]
