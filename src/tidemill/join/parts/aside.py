"""Work on another core, while the caller does something else."""

import os
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

Made = TypeVar("Made")

_WORTH_ROWS = 2048  # a guess: fewer are put together sooner than handed over


class Timed(Generic[Made]):
    """What some work gave, and the seconds that it took."""

    def __init__(self, work: Callable[[], Made]) -> None:
        self._work = work
        self._future: Future[tuple[Made, float]] | None = None
        self._made: tuple[Made, float] | None = None

    def begin(self, pool: ThreadPoolExecutor) -> None:
        self._future = pool.submit(self._run)

    @property
    def is_done(self) -> bool:
        return self._made is not None or (self._future is not None and self._future.done())

    def finish(self) -> None:
        """Wait for it."""
        self.result()

    def result(self) -> tuple[Made, float]:
        """Waits for it, or does it now if nobody else does."""
        if self._made is None:
            self._made = self._future.result() if self._future else self._run()
        return self._made

    def _run(self) -> tuple[Made, float]:
        started = time.perf_counter()
        made = self._work()
        return made, time.perf_counter() - started


class Aside:
    """One thread, if there is a second core for it; it starts with the first work that is worth it."""

    def __init__(self, *, may_use_another_core: bool = True) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._has_core = may_use_another_core and len(os.sched_getaffinity(0)) > 1

    def is_worth(self, rows: int) -> bool:
        """Whether there is another core, and work on so many rows is worth handing over."""
        return self._has_core and rows >= _WORTH_ROWS

    def begin(self, work: Callable[[], Made]) -> Timed[Made]:
        """Work that is worth it; it is done after what was begun before."""
        timed = Timed(work)
        timed.begin(self._thread())
        return timed

    @contextmanager
    def beside(self, work: Callable[[], Made], *, rows: int) -> Iterator[Timed[Made]]:
        """Some work on so many rows, done beside the body or, when it is small, after it; finished in any case."""
        timed = Timed(work)
        if self.is_worth(rows):
            timed.begin(self._thread())
        try:
            yield timed
        finally:
            timed.result()

    def _thread(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "join-aside")
            # May run inside a garbage collection, in any thread and at any line: it must not wait for a thread.
            weakref.finalize(self, self._pool.shutdown, wait=False)
        return self._pool


__all__ = ["Aside", "Timed"]
