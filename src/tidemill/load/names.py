"""Names that may reach paths and SQL: one pattern, one quoting."""

import re

from tidemill.core.errors import LoadError

_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_MAX_COLUMN_CHARS = 128


def check_name(kind: str, name: object) -> str:
    """The name itself, once it is safe as a folder, a path of a URL and a quoted identifier.

    >>> check_name("table", "sales_2026")
    'sales_2026'
    >>> check_name("table", "../etc")
    Traceback (most recent call last):
    tidemill.core.errors.LoadError: '../etc' is no table name. Next: use 1 to 128 of A-Z a-z 0-9 _ . - and start with a letter, digit or _
    """
    if not isinstance(name, str) or _PATTERN.fullmatch(name) is None:
        raise LoadError(
            f"{str(name)[:200]!r} is no {kind} name",
            code="bad_name",
            next_move="use 1 to 128 of A-Z a-z 0-9 _ . - and start with a letter, digit or _",
            status=422,
        )
    return name


def check_column_name(name: str) -> str:
    """The column name itself: any printable text, since columns are quoted and never become paths."""
    if not 0 < len(name) <= _MAX_COLUMN_CHARS or not name.isprintable():
        raise LoadError(
            f"{name[:200]!r} is no column name",
            code="bad_name",
            next_move=f"use 1 to {_MAX_COLUMN_CHARS} printable characters",
            status=422,
        )
    return name


def quote_ident(name: str) -> str:
    """The name as an SQL identifier, whatever is in it.

    >>> print(quote_ident('a"; DROP TABLE t; --'))
    "a""; DROP TABLE t; --"
    """
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


__all__ = ["check_column_name", "check_name", "quote_ident"]
