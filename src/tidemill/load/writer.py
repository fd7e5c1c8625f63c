"""One thread writes: what waits is tried in one transaction, and alone if that fails."""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tidemill.core.errors import InternalError, LoadError, TidemillError
from tidemill.load.failpoint import Failpoint
from tidemill.load.warehouses import Transaction, Warehouse

_log = logging.getLogger(__name__)
_MAX_GROUP = 32
_FIRST_REOPEN_SECONDS = 0.1
_LONGEST_REOPEN_SECONDS = 5.0


@dataclass(frozen=True)
class Outcome:
    """What a job did inside the transaction, and what follows once that is durable."""

    answer: dict[str, Any]
    wrote_batch: bool = False
    once_visible: Callable[[], None] = lambda: None


Work = Callable[[Transaction], Outcome]


@dataclass(frozen=True)
class _Job:
    work: Work
    done: "Future[dict[str, Any]]" = field(default_factory=Future)


def _end_process() -> None:
    os._exit(InternalError.exit_code)


class Writer:
    """The single writer of a warehouse.

    Jobs must depend on nothing but their transaction, since a failed group runs again one by one. If the
    thread ever dies, so does the process: a supervisor restarts it, where requests would hang for ever.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        on_reopened: Callable[[], None] = lambda: None,
        on_death: Callable[[], None] = _end_process,
        failpoint: Failpoint | None = None,
        queue_length: int = 64,
    ) -> None:
        self._warehouse = warehouse
        self._on_reopened = on_reopened
        self._on_death = on_death
        self._failpoint = failpoint or Failpoint()
        self._queue: queue.Queue[_Job | None] = queue.Queue(maxsize=queue_length)
        self._closing = threading.Event()
        self._down: LoadError | None = None
        self._thread = threading.Thread(target=self._run, name="tidemill-writer", daemon=True)
        self._thread.start()

    @property
    def is_down(self) -> bool:
        return self._down is not None

    def submit(self, work: Work) -> "Future[dict[str, Any]]":
        """The answer to come, with `visible_at_ns` added; refused at once when the queue is full."""
        if self._down is not None:
            raise self._down
        if self._closing.is_set():
            raise _stopping()
        job = _Job(work)
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            raise LoadError(
                f"{self._queue.maxsize} commits wait already",
                code="queue_full",
                next_move="wait and send again",
                retryable=True,
                status=429,
                retry_after_seconds=1,
            ) from None
        return job.done

    def close(self) -> None:
        """Finish what waits, then end the thread."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while jobs := self._take():
                self._do(jobs)
        except BaseException:  # noqa: BLE001 (nothing may leave a live process without a writer)
            _log.critical("the writer thread died, so the loader ends", exc_info=True)
            self._on_death()

    def _take(self) -> list[_Job]:
        """All jobs that wait, at least one; none when it is time to stop."""
        first = self._queue.get()
        if first is None:
            return []
        return [first, *self._waiting(_MAX_GROUP - 1)]

    def _waiting(self, most: int) -> list[_Job]:
        jobs: list[_Job] = []
        while len(jobs) < most:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self._queue.put(None)
                break
            jobs.append(job)
        return jobs

    def _do(self, jobs: Sequence[_Job]) -> None:
        try:
            self._do_together(jobs)
        except Exception as error:  # noqa: BLE001 (whatever a job raises is its answer)
            if getattr(error, "code", "") == "warehouse_down":
                self._recover(jobs, error)
            elif len(jobs) == 1:
                jobs[0].done.set_exception(error)
            else:
                for job in jobs:
                    self._do([job])

    def _do_together(self, jobs: Sequence[_Job]) -> None:
        with self._warehouse.transaction() as transaction:
            outcomes = [job.work(transaction) for job in jobs]
            wrote_batch = any(outcome.wrote_batch for outcome in outcomes)
            if wrote_batch:
                self._failpoint.reached("before_commit")
        visible_at_ns = time.time_ns()
        if wrote_batch:
            self._failpoint.reached("after_commit")
        for job, outcome in zip(jobs, outcomes, strict=True):
            outcome.once_visible()
            job.done.set_result({"visible_at_ns": visible_at_ns, **outcome.answer})

    def _recover(self, jobs: Sequence[_Job], error: Exception) -> None:
        """Fail all that wait, then reopen until it works: whether a lost COMMIT counts, the ledger says."""
        self._down = error if isinstance(error, LoadError) else _stopping()
        _log.error("%s", error)
        for job in [*jobs, *self._waiting(self._queue.maxsize)]:
            if not job.done.done():
                job.done.set_exception(self._down)
        pause_seconds = _FIRST_REOPEN_SECONDS
        while not self._closing.wait(pause_seconds):
            try:
                self._warehouse.reopen()
                self._on_reopened()
            except TidemillError as again:
                _log.error("still down: %s", again)
                pause_seconds = min(2 * pause_seconds, _LONGEST_REOPEN_SECONDS)
            else:
                self._down = None
                return


def _stopping() -> LoadError:
    return LoadError(
        "the loader is stopping",
        code="stopping",
        next_move="send again to the next one",
        retryable=True,
        status=503,
        retry_after_seconds=1,
    )


__all__ = ["Outcome", "Work", "Writer"]
