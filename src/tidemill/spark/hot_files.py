"""Generations of hot rows as files that all workers of a host map without a copy.

One elected builder writes a generation aside and renames it; the others switch at the start of their next batch.
A generation never changes, so a worker may keep an old one mapped while a new one is current.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.core.errors import StoreError
from tidemill.core.files import write_atomically
from tidemill.join.parts.hot_file import verify_hot_file
from tidemill.join.parts.hot_rows import HotRows


class HotFiles:
    """The current generation of one master version and set of columns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pointer = folder / "CURRENT"
        self._seen = ""

    def newer(self) -> HotRows | None:
        """The current generation if it is not the one given out before; None otherwise or when there is none.

        Hot rows can be rebuilt at any moment, so a damaged or vanished file is a cold start and no error.
        """
        try:
            name = self._pointer.read_text()
            if name == self._seen:
                return None
            verify_hot_file(self._folder / name)  # once a generation and worker: 1 ms for 10 MB
            generation = HotRows.open(self._folder / name)
        except (OSError, StoreError):
            return None
        self._seen = name
        return generation

    @contextmanager
    def elected(self) -> Iterator[bool]:
        """True inside for one process of the host at a time; the others go on with the generation they have."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "builder.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield not self._is_stale()

    def publish(self, generation: HotRows) -> None:
        """Make a generation current; only inside `elected`. The builder then maps it like everybody else."""
        name = f"{self._number() + 1:08d}.hot"
        generation.write(self._folder / name)
        write_atomically(self._pointer, name.encode())
        for old in self._folder.glob("*.hot"):
            if old.name != name:
                old.unlink(missing_ok=True)

    def _is_stale(self) -> bool:
        """Whether another process has published since we looked: then our candidates compete with old rows."""
        return self._pointer.exists() and self._pointer.read_text() != self._seen

    def _number(self) -> int:
        return int(self._pointer.read_text().removesuffix(".hot")) if self._pointer.exists() else 0


def worker_folder(folder: Path) -> Path:
    """Where workers leave the memory that they held before they opened a join."""
    return folder / "workers"


def note_baseline(folder: Path) -> None:
    """Leave this process's memory before the join, so that a sampler can tell what the join added."""
    import psutil

    place = worker_folder(folder)
    place.mkdir(parents=True, exist_ok=True)
    process = psutil.Process()
    text = f"{process.create_time()} {process.memory_full_info().pss}"
    write_atomically(place / str(os.getpid()), text.encode())


__all__ = ["HotFiles", "note_baseline", "worker_folder"]
