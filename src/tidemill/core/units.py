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

_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
_SPAN_MS = {
    "ms": 1,
    "s": 1_000,
    "min": _MINUTE_MS,
    "h": _HOUR_MS,
    "d": _DAY_MS,
    "second": 1_000,
    "minute": _MINUTE_MS,
    "hour": _HOUR_MS,
    "day": _DAY_MS,
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


def parse_span_ms(text: str) -> int:
    """Milliseconds from "90 s", "15 min", "1.5 h" or "2 hours".

    >>> parse_span_ms("90 s"), parse_span_ms("1.5h"), parse_span_ms("2 Minutes")
    (90000, 5400000, 120000)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text.lower())
    unit = (_SPAN_MS.get(match[2]) or _SPAN_MS.get(match[2].removesuffix("s"))) if match else None
    span_ms = round(float(match[1]) * unit) if match and unit else 0
    if not span_ms:
        raise SpecError(
            f"{text!r} is not a span of time",
            code="bad_span",
            next_move=f'write a number and a unit ({", ".join(_SPAN_MS)}), such as "15 min"',
            given=text,
        )
    return span_ms


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


__all__ = ["format_bytes", "format_count", "format_ms", "parse_bytes", "parse_span_ms"]
