"""Output put together on another core by a thread that never asks for Python's lock.

A thread that holds the lock between two jobs keeps the join from going on, and waits for it in turn: 60 µs and more each
time, where a job takes 500. This one takes its jobs from memory and tells there that they are done (`putter_kernels.py`).
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.core.errors import InternalError
from tidemill.join.parts import putter_kernels as kernels
from tidemill.join.parts.kernels import Int64s
from tidemill.master.lent import Loan

_WAIT_MS = 200  # between two looks whether the thread is still there


_Kept = tuple[Loan, tuple[Any, ...], tuple[Any, ...]]
"""Memory of a batch, the arrays that a job works on, and what owns those."""


class Asked:
    """A batch that was asked for.

    Args:
        putter: Who puts it together.
        job: Its number.
        loan: Memory of the batch.
        schema: Of the batch.
    """

    def __init__(self, putter: "Putter", job: int, loan: Loan, schema: pa.Schema) -> None:
        self._putter, self._job, self._loan, self._schema = putter, job, loan, schema

    @property
    def is_done(self) -> bool:
        return self._putter.has_done(self._job)

    def finish(self) -> None:
        """Wait for it."""
        self._putter.wait_for(self._job)

    def result(self) -> tuple[pa.RecordBatch, float]:
        """The batch, and the seconds that it took; waits for it."""
        seconds = self._putter.wait_for(self._job)
        self._putter.forget(self._job)
        return self._loan.batch(self._schema), seconds


class Putter:
    """One thread; it starts with the first job, and ends with this object."""

    def __init__(self) -> None:
        self._state = np.zeros(kernels.STATE_WORDS, dtype=np.int64)
        self._jobs = np.zeros((kernels.JOBS, kernels.JOB_WORDS), dtype=np.int64)
        self._asked = 0
        self._kept: dict[int, _Kept] = {}
        self._thread: threading.Thread | None = None
        self._errors: list[BaseException] = []

    def ask(
        self,
        ask: Callable[..., None],
        arguments: tuple[Any, ...],
        loan: Loan,
        schema: pa.Schema,
        keeps: tuple[Any, ...],
    ) -> Asked:
        """Have a batch put together.

        Args:
            ask: `ask_batch` or `ask_rows`.
            arguments: Of it, but for state, jobs and the room for the batch.
            loan: Memory of the batch.
            schema: Of the batch.
            keeps: Objects beside the arguments that must stay until it is done.
        """
        if self._thread is None:
            self._start()
        if self._asked - int(self._state[kernels.DONE]) >= kernels.JOBS:
            self.wait_for(self._asked - kernels.JOBS)
        job = self._asked
        self._kept[job] = (loan, arguments, keeps)
        self._asked += 1
        ask(self._state, self._jobs, *arguments, loan.room)
        return Asked(self, job, loan, schema)

    def forget(self, job: int) -> None:
        """What was kept for a job that is done may go."""
        del self._kept[job]

    def has_done(self, job: int) -> bool:
        return bool(self._state[kernels.DONE] > job)

    def wait_for(self, job: int) -> float:
        """Seconds that a job took, once it is done."""
        while not kernels.wait_for(self._state, job, _WAIT_MS):
            if self._errors or self._thread is None or not self._thread.is_alive():
                raise InternalError(f"output could not be put together: {self._errors}", code="putter_died")
        return int(self._jobs[job % kernels.JOBS, kernels.NANOSECONDS]) / 1e9

    def _start(self) -> None:
        # It does not know this object, which may go while it sleeps.
        arguments = (self._state, self._jobs, self._kept, self._errors)
        self._thread = threading.Thread(target=_run, args=arguments, name="join-putter", daemon=True)
        self._thread.start()
        weakref.finalize(self, kernels.stop, self._state)


def _run(state: Int64s, jobs: Int64s, kept: dict[int, _Kept], errors: list[BaseException]) -> None:
    """What the jobs work on stays as long as this does, be their owner gone."""
    try:
        kernels.work(state, jobs)
    except BaseException as error:  # noqa: BLE001 - told by whoever waits for the job
        errors.append(error)
    for loan, *_ in kept.values():  # nobody will ask for these
        loan.mark[0] = 0


__all__ = ["Asked", "Putter"]
