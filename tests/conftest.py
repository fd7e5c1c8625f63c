"""What all tests share."""

import atexit
import os


@atexit.register
def keep_the_verdict_last() -> None:
    """DuckDB's bindings list every object that pytest still holds when the interpreter ends: a hundred lines."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
