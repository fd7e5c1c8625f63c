"""Sampled memory of the workers that host a join, above what each held before it opened one."""

import os
from pathlib import Path

import psutil

from tidemill.core.files import write_atomically


def note_baseline(folder: Path) -> None:
    """Leave this process's memory before the join, so that a sampler can tell what the join added."""
    place = _notes(folder)
    place.mkdir(parents=True, exist_ok=True)
    process = psutil.Process()
    text = f"{process.create_time()} {held_bytes(process, folder)}"
    write_atomically(place / str(os.getpid()), text.encode())


def held_bytes(process: psutil.Process, folder: Path) -> int:
    """Memory that only this process has, and its part of the files in the folder.

    Not what it shares with others: pages of a library, and those that it has from the process that forked it, count for more as
    soon as a process ends that has nothing to do with the join.
    """
    held = 0
    for part in process.memory_maps(grouped=True):
        if part.path.startswith(f"{folder}/"):
            held += part.pss
        elif not part.path.startswith("/"):
            held += part.private_clean + part.private_dirty
    return held


def _notes(folder: Path) -> Path:
    return folder / "workers"


class MemorySampler:
    """Keeps the peak of all samples. A page of hot rows that several workers map counts once in all."""

    def __init__(self, hot_rows: Path) -> None:
        self._hot_rows = hot_rows
        self._folder = _notes(hot_rows)
        self.peak_bytes = 0

    def sample(self) -> int:
        """Bytes that the living workers hold now above their idle baselines."""
        held = 0
        for note in self._folder.glob("[0-9]*"):
            try:
                created, baseline = note.read_text().split()
                worker = psutil.Process(int(note.name))
                if worker.create_time() == float(created):
                    held += max(0, held_bytes(worker, self._hot_rows) - int(baseline))
            except (psutil.Error, OSError, ValueError):
                continue  # the worker ended meanwhile
        self.peak_bytes = max(self.peak_bytes, held)
        return held


__all__ = ["MemorySampler", "held_bytes", "note_baseline"]
