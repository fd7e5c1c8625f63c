"""Output put together by a thread of its own: in order, whoever goes in between."""

import gc
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.errors import InternalError
from tidemill.core.recycled import Recycled
from tidemill.join.output import OutputPlan
from tidemill.join.parts import putter_kernels
from tidemill.join.parts.putter import Asked, Putter
from tidemill.join.parts.side_by_side import SideBySide
from tidemill.master import lent
from tidemill.master.rows import RowLayout

STREAM = pa.schema([("key", pa.int64()), ("n", pa.int32())])
MASTER = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROWS = 3000


class Work:
    """Stream rows and master rows that can be put side by side, with every third stream row unmatched."""

    def __init__(self) -> None:
        self.batch = pa.record_batch([np.arange(ROWS), np.arange(ROWS, dtype=np.int32)], schema=STREAM)
        master = pa.record_batch([np.arange(ROWS), [f"name {n}" for n in range(ROWS)]], schema=MASTER)
        layout = RowLayout.of(MASTER)
        self.rows, at = layout.encode(master)
        self.at = np.where(np.arange(ROWS) % 3 == 2, -1, at[:-1])
        plan = OutputPlan.of(STREAM, MASTER, stream_key="key", master_key="id", how="left", columns=["name"])
        self.beside = SideBySide(plan, layout, RowLayout.of(STREAM))
        sources = self.beside.sources(self.batch)
        assert sources is not None
        self.sources = sources

    def ask(self, putter: Putter, first: int, memory: Recycled) -> Asked:
        """Rows from one on."""
        numbers = np.arange(first, ROWS)
        rows = (self.sources, numbers, self.rows, self.at[first:].copy(), len(self.rows), memory)
        return self.beside.ask_batch(putter, self.batch, *rows)

    def expected(self, first: int) -> dict[str, list[object]]:
        numbers = list(range(first, ROWS))
        names = [None if n % 3 == 2 else f"name {n}" for n in numbers]
        return {"key": [*numbers], "n": [*numbers], "name": [*names]}


@pytest.fixture(scope="module")
def work() -> Work:
    return Work()


def test_batches_are_what_was_asked_for(work: Work) -> None:
    putter, memory = Putter(), Recycled(10**7)
    asked = [work.ask(putter, first, memory) for first in range(0, ROWS, 100)]  # more than it holds at a time
    for number, job in enumerate(asked):
        found, seconds = job.result()
        found.validate(full=True)
        assert found.to_pydict() == work.expected(100 * number)
        assert seconds > 0
    assert not putter._kept, "nothing is kept for jobs that are done"


def test_it_sleeps_and_wakes_up(work: Work) -> None:
    putter, memory = Putter(), Recycled(10**7)
    for pause_s in (0.0, 0.01, 0.05):
        time.sleep(pause_s)
        assert work.ask(putter, 7, memory).result()[0].to_pydict() == work.expected(7)


def test_what_jobs_work_on_stays_when_all_owners_go() -> None:
    own, memory = Work(), Recycled(10**7)
    putter = Putter()
    for _ in range(putter_kernels.JOBS):
        own.ask(putter, 0, memory)
    thread = putter._thread
    assert thread is not None
    del putter, own
    gc.collect()
    thread.join(10)
    assert not thread.is_alive(), "it ends with its owner"
    lent.lend(memory, 100)
    lent.lend(memory, 100)
    assert len(lent._loans[memory]) <= 3, "batches that nobody took are forgotten"


def test_a_job_that_fails_is_told_by_who_waits_for_it(work: Work) -> None:
    putter, memory = Putter(), Recycled(10**7)
    loan = lent.lend(memory, 4096)  # far too little
    numbers = np.arange(ROWS)
    arguments = (work.beside._head, work.sources, numbers, work.rows, work.at, work.beside._master.facts)
    asked = putter.ask(putter_kernels.ask_batch, arguments, loan, STREAM, ())
    with pytest.raises(InternalError, match="could not be put together"):
        asked.result()


def test_a_process_may_end_while_it_works() -> None:
    program = (
        "import sys; sys.path[:0] = ['tests/join/parts']\n"
        "import test_putter\n"
        "from tidemill.core.recycled import Recycled\n"
        "work, putter, memory = test_putter.Work(), test_putter.Putter(), Recycled(10**7)\n"
        "sys.asked = [work.ask(putter, 0, memory) for _ in range(12)]\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
