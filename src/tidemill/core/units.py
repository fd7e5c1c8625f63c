"""Bytes, rates and spans of time as people write and read them."""

import re

from tidemill.core.errors import SpecError

_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_bytes(text: str | int) -> int:
    """Bytes from "256 MB", "16 KiB" or a plain number.

    >>> parse_bytes("256 MB"), parse_bytes("16KiB"), parse_bytes(42)
    (256000000, 16384, 42)
    """
    if isinstance(text, int):
        number, unit = float(text), "b"
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
        if match is None or (match[2].lower() or "b") not in _UNITS:
            raise SpecError(
                f"{text!r} is not a size in bytes",
                code="bad_size",
                next_move='write a number and a unit such as "256 MB" or "16 KiB"',
                given=text,
            )
        number, unit = float(match[1]), match[2].lower() or "b"
    if number <= 0:
        raise SpecError(
            f"a size must be more than zero, not {text!r}", code="bad_size", next_move="give a positive size"
        )
    return int(number * _UNITS[unit])


def format_bytes(count: float) -> str:
    """Three figures and a unit.

    >>> format_bytes(31_457_280), format_bytes(512), format_bytes(0)
    ('31.5 MB', '512 B', '0 B')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def format_count(count: float) -> str:
    """Whole numbers with thousands apart.

    >>> format_count(1234567.0)
    '1,234,567'
    """
    return f"{count:,.0f}"


def format_ms(milliseconds: float | None) -> str:
    """Milliseconds, or seconds from one second on.

    >>> format_ms(412.3), format_ms(2345.0), format_ms(None)
    ('412 ms', '2.35 s', '-')
    """
    if milliseconds is None:
        return "-"
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


__all__ = ["format_bytes", "format_count", "format_ms", "parse_bytes"]
