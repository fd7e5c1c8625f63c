"""One cell of the join benchmark, in a process of its own: warm up, measure, then verify.

```
open │ warm-up: `seconds`, and until the first row leaves │ measured: `seconds` │ caught rows │ verified from the start
     └───────────────────── one endless stream, never drained ─────────────────────────────┘
```
Rows that wait are never drained in between, so the rate is that of a join in full swing: rows that left in the measured
time, whenever they came. Speaks to the parent in lines of JSON: {"idle_bytes": …} before anything is opened, {"measured": …},
{"verified": …}, or {"refused": …} where the memory is too small for the contender.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa

from tidemill.core.errors import BudgetError
from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.lab.join_data import JoinData
from tidemill.lab.kernel_counts import KernelCounts, private_bytes
from tidemill.lab.peers import PEERS, Contender, Outputs, open_peer, peer_module
from tidemill.lab.rows import MASTER_NAMES
from tidemill.lab.store import open_store
from tidemill.lab.streams import STREAM_SCHEMA, Stream, endless, first_rows
from tidemill.lab.verify import Judge

VERIFIED_SHARE = 0.5
"""Of the measured rows, so that verifying takes about half as long as measuring; and at most so many:"""
MOST_VERIFIED_ROWS = 1_000_000
CAUGHT_ROWS = 20_000
"""That leave right after the measured ones, with hot rows and waiting rows as they were then."""


@dataclass(frozen=True)
class CellSpec:
    """All that a child needs to know; equal specs are the same cell."""

    contender: str
    zipf: float
    memory_share: float
    master_rows: int
    stream_rows: int | None
    """Rows that end warm-up and measuring before their seconds do; None for the seconds alone."""
    seconds: float
    folder: str
    seed: int

    @property
    def data(self) -> JoinData:
        return JoinData(Path(self.folder), self.master_rows)

    @property
    def stream(self) -> Stream:
        given = {} if self.stream_rows is None else {"rows": 2 * self.stream_rows}
        return Stream(Path(self.folder), self.master_rows, self.zipf, self.seed, **given)

    @property
    def memory_bytes(self) -> int:
        return int(self.data.master_bytes() * self.memory_share)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class CatalogJoin:
    """A join of the catalog as a contender."""

    def __init__(self, name: str, data: JoinData, memory_bytes: int) -> None:
        self._join = make_join(
            name,
            open_store(data),
            STREAM_SCHEMA,
            stream_key="key",
            budget=MemoryBudget(memory_bytes),
            how="left",
            columns=MASTER_NAMES,
        )

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Outputs]:
        return (report.outputs for report in drive(self._join, batches))


def open_contender(spec: CellSpec) -> Contender:
    if spec.contender in PEERS:
        return open_peer(spec.contender, spec.data, spec.memory_bytes)
    return CatalogJoin(spec.contender, spec.data, spec.memory_bytes)


def run_cell(spec: CellSpec) -> None:
    """Measure and verify, telling the parent after each."""
    stream = spec.stream.read()
    if spec.contender in PEERS:
        peer_module(spec.contender)
    pa.default_memory_pool().release_unused()
    # Stream and libraries are there: what comes on top is the contender's.
    say({"idle_bytes": private_bytes()})
    work = open_contender(spec).join(endless(stream))
    warm_up_rows, _ = run_for(work, spec)
    before = KernelCounts.now()
    rows, seconds = run_for(work, spec)
    read = KernelCounts.now().since(before)
    say(
        {
            "measured": {
                "rows_per_s": rows / seconds,
                "bytes_read": read.bytes_read,
                "reads": read.reads,
                "stream_rows": rows,
                "seconds": seconds,
                "warm_up_rows": warm_up_rows,
            }
        }
    )
    few_rows = int(rows * VERIFIED_SHARE) + 1
    caught = catch(work, min(CAUGHT_ROWS, few_rows))
    del work  # and with it the contender: LMDB opens a file once a process
    say({"verified": verify(spec, caught, stream, min(MOST_VERIFIED_ROWS, few_rows))})


def run_for(work: Iterator[Outputs], spec: CellSpec) -> tuple[int, float]:
    """Rows that left and seconds that passed, until time or rows are up; at least one row leaves.

    Each stream row gives one output row: keys are unique in the master data, and the join is a left one.
    """
    rows, started = 0, time.perf_counter()
    most_rows = spec.stream_rows or float("inf")
    for left in map(count_rows, work):  # no name holds the outputs while the next ones are made
        rows += left
        if rows >= most_rows or (rows and time.perf_counter() - started >= spec.seconds):
            break
    return rows, time.perf_counter() - started


def count_rows(outputs: Iterable[pa.RecordBatch]) -> int:
    return sum(output.num_rows for output in outputs)


def verify(
    spec: CellSpec, caught: list[pa.RecordBatch], stream: list[pa.RecordBatch], rows: int
) -> dict[str, object]:
    """Judge rows caught in full swing one by one, then all rows of a new run over the stream's start together."""
    judge, start = Judge(spec.data), first_rows(stream, rows)
    outputs = chain.from_iterable(open_contender(spec).join(start))
    return {
        "same_rows": judge.right_matches(caught, stream) and judge.same_rows(outputs, start),
        "verified_rows": count_rows(caught + start),
    }


def catch(work: Iterator[Outputs], rows: int) -> list[pa.RecordBatch]:
    """The next outputs, together at least so many rows."""
    caught: list[pa.RecordBatch] = []
    while count_rows(caught) < rows:
        caught += next(work)
    return caught


def say(record: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        run_cell(CellSpec(**json.loads(sys.argv[1])))
    except BudgetError as error:
        say({"refused": str(error)})
