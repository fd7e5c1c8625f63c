"""The folder of what workers of a host share: files of queries that ended, and of versions that passed, go again.

They lie in memory, so each that stays is memory that nobody has promised. Only files of content go, never those of
locks: who still maps a removed file goes on with it, and all who come later agree on the same locks.
"""

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

UNUSED_SECONDS = 3600
"""A query that had no task for so long starts with cold rows."""
_HOT, _BOARD = ".hot", ".board"


def hot_file(folder: Path, setting: str) -> Path:
    """Where the hot rows of this setting lie."""
    return folder / f"{_short(setting)}{_HOT}"


def board_file(folder: Path, setting: str, identity: str) -> Path:
    """Where pages of this version are posted; those of the versions before it are gone from now on."""
    folder.mkdir(parents=True, exist_ok=True)
    mine = f"{_short(setting)}-{_short(identity)}{_BOARD}"
    for other in folder.glob(f"{_short(setting)}-*{_BOARD}"):
        if other.name != mine:
            other.unlink(missing_ok=True)
    return folder / mine


def mark_used(*files: Path) -> None:
    """So that nobody takes them for left behind; one that was removed meanwhile stays so."""
    for file in files:
        with suppress(FileNotFoundError):
            os.utime(file)


def forget_unused(folder: Path) -> None:
    """Remove what no task has used for an hour."""
    limit = time.time() - UNUSED_SECONDS
    for file in (*folder.glob(f"*{_HOT}"), *folder.glob(f"*{_BOARD}")):
        with suppress(FileNotFoundError):
            if file.stat().st_mtime < limit:
                file.unlink()


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


__all__ = ["UNUSED_SECONDS", "board_file", "forget_unused", "hot_file", "mark_used"]
