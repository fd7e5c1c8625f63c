"""Memory of a contender while it runs, and the page cache kept from helping it."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from tidemill.lab.kernel_counts import drop_from_cache

SAMPLE_EVERY_S = 0.2
"""A sample of two workers takes 2 ms; the JVM's resident size less."""
DROP_EVERY_S = 0.5
"""Dropping costs 0.2 ms a cached megabyte."""


class Watch:
    """Peak of a contender's memory since the last `restart`, sampled beside it; drops its files from the page cache."""

    def __init__(self, held_bytes: Callable[[], int], files: Callable[[], Iterable[Path]]) -> None:
        self._held_bytes = held_bytes
        self._files = files
        self._stopped = threading.Event()
        self._sampling = threading.Lock()
        self._threads = [
            threading.Thread(target=self._repeat, args=(act, every_s), daemon=True)
            for act, every_s in ((self._sample, SAMPLE_EVERY_S), (self._drop, DROP_EVERY_S))
        ]
        self.peak_bytes = 0

    def __enter__(self) -> "Watch":
        self._drop()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def restart(self) -> None:
        """Forget what was before, a sample under way too: it may count what has just ended."""
        with self._sampling:
            self.peak_bytes = 0

    def _repeat(self, act: Callable[[], None], every_s: float) -> None:
        while not self._stopped.wait(every_s):
            act()

    def _sample(self) -> None:
        with self._sampling:
            self.peak_bytes = max(self.peak_bytes, self._held_bytes())

    def _drop(self) -> None:
        for file in self._files():
            with suppress(OSError):  # a temporary file of a database may be gone
                drop_from_cache(file)


def resident_bytes(program: str) -> Callable[[], int]:
    """Resident memory of this process's descendants of that name, shared pages counted in each."""

    def held() -> int:
        total = 0
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                total += process.memory_info().rss if process.name() == program else 0
        return total

    return held


def proportional_bytes(program: str) -> Callable[[], int]:
    """The same with pages that several of them share counted once in all."""

    def held() -> int:
        total = 0
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                total += process.memory_full_info().pss if process.name() == program else 0
        return total

    return held


def files_below(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file())


__all__ = ["Watch", "files_below", "proportional_bytes", "resident_bytes"]
