"""A way for tests to die at a named point, as an operator's `kill -9` would make it."""

import os
import signal
from pathlib import Path

VARIABLE = "TIDEMILL_FAIL_AT"
"""Folder in which a file named after a point means: die there, once."""


def die_if_told(point: str) -> None:
    """End this process with SIGKILL if the point's file is there; the file is removed first."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return
    try:
        (Path(folder) / point).unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


__all__ = ["die_if_told"]
