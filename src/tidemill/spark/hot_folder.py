"""The folder of what workers of a host share: files of queries that ended, and of versions that passed, go again.

They lie in memory, so each that stays is memory that nobody has promised. Only files of content go, never those of
locks: who still maps a removed file goes on with it, and all who come later agree on the same locks.
"""

import hashlib
import os
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tidemill.core.errors import SpecError

UNUSED_SECONDS = 3600
"""A query that had no task for so long starts with cold rows."""
_HOT, _BOARD = ".hot", ".board"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - what lies there is checked to be ours
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def own_temporary_folder() -> Path:
    """A folder in shared memory, or under the system's temporary one, that nobody else could have filled.

    Asked for by the process that uses it: on another host, or for another user, it is another folder.
    """
    shared = _SHARED_MEMORY
    parent = shared if shared.is_dir() and os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    folder = parent / f"tidemill-{os.getuid()}"
    with suppress(FileExistsError):  # a file or a link to nowhere too: what lies there is looked at next
        folder.mkdir(mode=0o700)
    found = folder.lstat()  # of a link itself, not of what it leads to
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or found.st_mode & _OTHERS_MAY_WRITE:
        raise SpecError(
            f"{folder} belongs to somebody else, or others may write to it",
            code="foreign_folder",
            next_move="name a folder with hot_rows=, or have this one removed",
            folder=str(folder),
        )
    return folder


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


__all__ = [
    "UNUSED_SECONDS",
    "board_file",
    "forget_unused",
    "hot_file",
    "mark_used",
    "own_temporary_folder",
]
