"""Numbers as digits, eight at a time: no loop over digits, no table."""

import numpy as np
from numba import njit, types

from tidemill.master.addresses import load_64, store_64

_EIGHT_DIGITS = np.uint64(10**8)
_FOUR_DIGITS = np.uint64(10**4)
_HUNDRED, _TEN = np.uint64(100), np.uint64(10)
_BYTE, _TWO_BYTES, _FOUR_BYTES = np.uint64(8), np.uint64(16), np.uint64(32)
# A hundredth and a tenth as products and shifts, exact for what has four and two digits; of all parts of a word at once.
_HUNDREDTH, _HUNDREDTH_SHIFT, _HUNDREDTH_MASK = np.uint64(10486), np.uint64(20), np.uint64(0x7F_0000_007F)
_TENTH, _TENTH_SHIFT, _TENTH_MASK = np.uint64(103), np.uint64(10), np.uint64(0x000F_000F_000F_000F)
_ZEROS = np.uint64(0x3030_3030_3030_3030)
_EIGHT, _SIXTEEN = 8, 16


@njit(types.uint64(types.uint64), cache=True, inline="always")
def eight_digits(number: np.uint64) -> np.uint64:
    """The last eight digits as text, in a word that begins with the first of them.

    Halves of four digits, quarters of two, then single digits: each step divides all parts at once.
    """
    high = number // _FOUR_DIGITS
    halves = high | ((number - high * _FOUR_DIGITS) << _FOUR_BYTES)
    high = ((halves * _HUNDREDTH) >> _HUNDREDTH_SHIFT) & _HUNDREDTH_MASK
    quarters = high | ((halves - high * _HUNDRED) << _TWO_BYTES)
    high = ((quarters * _TENTH) >> _TENTH_SHIFT) & _TENTH_MASK
    return (high | ((quarters - high * _TEN) << _BYTE)) + _ZEROS


@njit(types.void(types.int64, types.uint64, types.int64, types.int64), cache=True, inline="always")
def write_digits(to: int, number: np.uint64, digits: int, frame: int) -> None:
    """Write a number of at most 18 digits with as many zeros before it as it lacks.

    Args:
        to: Where the first digit goes.
        number: Less than ten to the power of `digits`.
        digits: How many are written; of less than eight, eight bytes are written.
        frame: Where zeros lie in place of the digits, and behind them what comes after.
    """
    if digits <= _EIGHT:
        word = eight_digits(number) >> (_BYTE * np.uint64(_EIGHT - digits))
        store_64(to, np.int64(word) | load_64(frame))
    else:
        # What has less than eight digits of its own comes first: the next piece overwrites what it spills.
        high = number // _EIGHT_DIGITS
        if digits <= _SIXTEEN:
            store_64(to, np.int64(eight_digits(high) >> (_BYTE * np.uint64(_SIXTEEN - digits))))
        else:
            highest = high // _EIGHT_DIGITS
            store_64(to, np.int64(eight_digits(highest) >> (_BYTE * np.uint64(_SIXTEEN + _EIGHT - digits))))
            store_64(to + digits - _SIXTEEN, np.int64(eight_digits(high - highest * _EIGHT_DIGITS)))
        store_64(to + digits - _EIGHT, np.int64(eight_digits(number - high * _EIGHT_DIGITS)))


__all__ = ["eight_digits", "write_digits"]
