"""Sampled memory of the workers that host a join, above what each held before it opened one."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from tidemill.core.files import write_atomically

_IN_USE_SECONDS = 10  # each task marks the files that it uses


def note_baseline(folder: Path) -> None:
    """Leave this process's memory before the join, so that a sampler can tell what the join added.

    Notes of processes that have ended go.
    """
    place = _notes(folder)
    place.mkdir(parents=True, exist_ok=True)
    for note in place.glob("[0-9]*"):
        if _worker(note) is None:
            note.unlink(missing_ok=True)
    process = psutil.Process()
    text = f"{process.create_time()} {held_bytes(process.pid)}"
    write_atomically(place / str(os.getpid()), text.encode())


def held_bytes(process: int) -> int:
    """Memory of a process that lies in no file: its own, and its part of what it shares with the one that forked it.

    Pages of libraries are left out: they count for more as soon as some other process ends that uses them too.
    """
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon")), 0)


def shared_bytes(folder: Path) -> int:
    """Memory of the files that workers map, once for all of them; those of queries that ended go later."""
    found = [file.stat() for file in folder.glob("*") if file.is_file()]
    return sum(one.st_blocks * 512 for one in found if time.time() - one.st_mtime < _IN_USE_SECONDS)


def forget_ended(folder: Path) -> None:
    """Count the files no more that are there now: their queries have ended."""
    for file in folder.glob("*"):
        if file.is_file():
            os.utime(file, (0, 0))


def _notes(folder: Path) -> Path:
    return folder / "workers"


class _Worker(NamedTuple):
    process: int
    baseline_bytes: int


def _worker(note: Path) -> _Worker | None:
    """The one that left the note; None if it has ended, whoever has its number now."""
    try:
        created, baseline = note.read_text().split()
        process = psutil.Process(int(note.name))
        return _Worker(process.pid, int(baseline)) if process.create_time() == float(created) else None
    except (psutil.Error, OSError, ValueError):
        return None


class MemorySampler:
    """Keeps the peak of all samples. What several workers map counts once in all."""

    def __init__(self, hot_rows: Path) -> None:
        self._hot_rows = hot_rows
        self._folder = _notes(hot_rows)
        self.peak_bytes = 0

    def sample(self) -> int:
        """Bytes that the living workers hold now above their idle baselines."""
        held = shared_bytes(self._hot_rows) if self._folder.is_dir() else 0
        for note in self._folder.glob("[0-9]*"):
            worker = _worker(note)
            if worker is not None:
                with suppress(OSError):  # it ended meanwhile
                    held += max(0, held_bytes(worker.process) - worker.baseline_bytes)
        self.peak_bytes = max(self.peak_bytes, held)
        return held


__all__ = ["MemorySampler", "forget_ended", "held_bytes", "note_baseline", "shared_bytes"]
