"""What all tests share."""

import os

import pytest


def pytest_unconfigure(config: pytest.Config) -> None:
    """Keep the verdict the last thing on the screen.

    DuckDB's bindings list every object that pytest still holds when the interpreter ends, a hundred lines on stderr.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
