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
    text = f"{process.create_time()} {process.memory_full_info().pss}"
    write_atomically(place / str(os.getpid()), text.encode())


def _notes(folder: Path) -> Path:
    return folder / "workers"


class MemorySampler:
    """Keeps the peak of all samples. PSS counts a page that several workers map once in all."""

    def __init__(self, hot_rows: Path) -> None:
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
                    held += max(0, worker.memory_full_info().pss - int(baseline))
            except (psutil.Error, OSError, ValueError):
                continue  # the worker ended meanwhile
        self.peak_bytes = max(self.peak_bytes, held)
        return held


__all__ = ["MemorySampler", "note_baseline"]
