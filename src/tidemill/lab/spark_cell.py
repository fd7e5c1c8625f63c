"""The cells of one contender and memory share, in a process and a session of their own: warm up, measure, compare.

```
open │ lot "warm" │ for each size of batch:  lot "own-warm-N" │ lot "rows-N", measured │ lot "check-N", compared, untimed
     └─ fills caches, and Java compiles          └─ both around and around, for some seconds
```
Speaks to the parent in lines of JSON: {"cell": {…}} for each cell that ended, or {"refused": …} where the memory is too
small, or {"missing": …} where something that the contender stands on is not installed.
"""

import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidemill.core.errors import BudgetError, InternalError, StoreError
from tidemill.lab.spark_check import expected, summed
from tidemill.lab.spark_contenders import JOINS, Opened, opened
from tidemill.lab.spark_data import (
    FILES_PER_BATCH,
    Lot,
    SparkData,
    check_lot,
    measured_lot,
    own_warm_lot,
)
from tidemill.lab.spark_flink import run_flink
from tidemill.lab.spark_memory import Watch
from tidemill.lab.streams import STREAM_SCHEMA
from tidemill.spark.hot_folder import own_temporary_folder
from tidemill.spark.memory_sample import forget_ended

POLL_S = 0.05
RUN_PREFIX = "run-"
"""Of scratch folders; the process id follows, so that a parent finds what a killed child left."""
WARM_UP_FACTOR = 3
"""Times the seconds of a cell, before the first one: Java's compilers take 13 s of two cores in the first minute."""
OWN_WARM_UP_FACTOR = 2
"""The same, before cells of another size: what Spark does for each batch, and how, Java has compiled only after some hundred of them.
`tide` took 233 ms for 200,000 rows at first and 188 after 15 s, and 83 and 57 for 2,000; `ceiling` 73 and 44 for those."""
PATIENCE_FACTOR = 4
"""Times the seconds of a cell, after which one batch is enough where two were wanted."""


@dataclass(frozen=True)
class SparkCell:
    """All that a child needs to know; equal specs are the same cell."""

    contender: str
    batch_rows: int
    memory_share: float | None
    """Of the master data; None for contenders that hold what they like."""
    master_rows: int
    seconds: float
    """After which no new batch is waited for, once enough have ended."""
    cores: int
    folder: str
    seed: int

    @property
    def data(self) -> SparkData:
        return SparkData(Path(self.folder), self.master_rows, self.seed)

    @property
    def memory_bytes(self) -> int:
        return int(self.data.master_bytes() * (self.memory_share or 0))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_cells(cells: list[SparkCell]) -> None:
    """Cells of one contender and share; the parent is told after each."""
    first = cells[0]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: first.cores])
    with _scratch(Path(first.folder)) as scratch, _scratch(own_temporary_folder()) as hot_rows:
        if first.contender == "flink-lookup":
            sizes = [cell.batch_rows for cell in cells]
            found = run_flink(first.data, sizes, first.memory_bytes, first.seconds, first.cores, scratch)
            for rows in sizes:
                say({"cell": {"batch_rows": rows, **found}})
            return
        with opened(
            first.contender, first.data, first.memory_bytes, first.cores, scratch, hot_rows
        ) as contender:
            runner = _Runner(contender, first.data, scratch)
            with Watch(contender.held_bytes, contender.files) as watch:
                warm = first.data.warm_lot()
                runner.warm_up(warm, WARM_UP_FACTOR * first.seconds)
                for cell in cells:
                    lot = measured_lot(cell.batch_rows)
                    if cell.batch_rows != warm.batch_rows:
                        runner.warm_up(own_warm_lot(cell.batch_rows), OWN_WARM_UP_FACTOR * cell.seconds)
                    forget_ended(hot_rows)
                    watch.restart()
                    # Hot rows are those of a query: the first batch of one has few.
                    least = 2 if cell.contender in JOINS else 1
                    batches = runner.run(lot, cell.seconds, least)
                    found, peak_bytes = rates(cell, batches), watch.peak_bytes
                    is_slow = found["batch_ms_p50"] > 1000 * cell.seconds
                    rows = min(other.batch_rows for other in cells) if is_slow else cell.batch_rows
                    say({"cell": {**found, "memory_peak_bytes": peak_bytes, **runner.compared(rows)}})


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    prefix = f"{RUN_PREFIX}{os.getpid()}-"
    with tempfile.TemporaryDirectory(dir=folder, prefix=prefix, ignore_cleanup_errors=True) as place:
        yield Path(place)


class _Runner:
    """Streaming queries of one contender, one after the other."""

    def __init__(self, contender: Opened, data: SparkData, scratch: Path) -> None:
        self._contender = contender
        self._data = data
        self._scratch = scratch
        self._queries = 0

    def warm_up(self, lot: Lot, seconds: float) -> None:
        """Join a lot again and again, for about so many seconds.

        It is not left in the middle, unless it takes longer than that: Spark ends workers whose task it ends.
        """
        until, least, took = time.monotonic() + seconds, 0, 0.0
        while (left := until - time.monotonic()) > took / 2:
            self.run(lot, left, least)
            took, least = left - (until - time.monotonic()), lot.batches

    def run(self, lot: Lot, seconds: float, least: int) -> list[dict[str, Any]]:
        """Progress of each batch of the lot, or of those that end within the seconds and of the least."""
        joined = self._contender.joined
        if self._contender.in_each_batch:
            writer = self._stream(lot).writeStream.foreachBatch(lambda rows, _: _to_nowhere(joined(rows)))
        else:
            writer = joined(self._stream(lot)).writeStream.format("noop")
        with self._started(writer) as query:
            return _batches(query, lot, seconds, least)

    def compared(self, batch_rows: int) -> dict[str, Any]:
        """Whether the check batch of that size, streamed, has the rows of Spark's own join."""
        contender, lot, found = self._contender, check_lot(batch_rows), [0, 0]

        def add(rows: DataFrame, _: int) -> None:
            told = summed(contender.joined(rows) if contender.in_each_batch else rows, contender.rows)
            found[:] = [one + other for one, other in zip(found, told, strict=True)]

        stream = self._stream(lot) if contender.in_each_batch else contender.joined(self._stream(lot))
        with self._started(stream.writeStream.foreachBatch(add)) as query:
            _batches(query, lot, 0.0, least=1)
        right = expected(contender.session, self._data, batch_rows, contender.rows)
        return {"same_rows": found == right, "verified_rows": found[0]}

    def _stream(self, lot: Lot) -> DataFrame:
        reader = self._contender.session.readStream.schema(from_arrow_schema(STREAM_SCHEMA))
        return reader.option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(self._data.path(lot)))

    @contextmanager
    def _started(self, writer: "DataStreamWriter") -> Iterator[StreamingQuery]:
        self._queries += 1
        place = self._scratch / f"checkpoint-{self._queries}"
        query = writer.option("checkpointLocation", str(place)).trigger(processingTime="0 seconds").start()
        try:
            yield query
        finally:
            query.stop()


def _batches(query: StreamingQuery, lot: Lot, seconds: float, least: int) -> list[dict[str, Any]]:
    """Progress of each batch that has ended. A batch under way when time is up is given up.

    Time is up when the seconds are over and the least has ended, or one batch after much longer, if one is wanted at all.

    Only the last one is asked for meanwhile: each that is told costs the JVM a call and a text, and twenty times a second
    all of them took half a core.
    """
    began, seen, enough = time.monotonic(), 0, least
    while seen < lot.batches and (seen < enough or time.monotonic() - began < seconds):
        time.sleep(POLL_S)
        if time.monotonic() - began > PATIENCE_FACTOR * seconds:
            enough = min(least, 1)
        failure = query.exception()
        if failure is not None or not query.isActive:
            raise InternalError(f"the query ended: {failure}", code="query_ended")
        last = query.lastProgress
        seen = last["batchId"] + bool(last["numInputRows"]) if last else 0
    ended: list[dict[str, Any]] = [dict(told) for told in query.recentProgress if told["numInputRows"]]
    for told in ended:
        if told["numInputRows"] != lot.batch_rows:
            raise InternalError(
                f"a batch of {told['numInputRows']} rows instead of {lot.batch_rows}", code="other_batch"
            )
    return ended


def rates(cell: SparkCell, batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the batches after warm-up: a fifth of them, one at least unless it is the only one."""
    warm_up = min(max(1, len(batches) // 5), len(batches) - 1)
    measured = batches[warm_up:]
    batch_ms = statistics.median(told["durationMs"]["triggerExecution"] for told in measured)
    return {
        "batch_rows": cell.batch_rows,
        "rows_per_s": cell.batch_rows / batch_ms * 1000,
        "batch_ms_p50": batch_ms,
        "add_batch_ms_p50": statistics.median(told["durationMs"]["addBatch"] for told in measured),
        "batches": len(measured),
        "warm_up_batches": warm_up,
    }


def _to_nowhere(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def say(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def end_with_the_parent() -> None:
    """When the parent is gone, however it ended, end this process with the JVM and the servers that it started."""

    def wait() -> None:
        sys.stdin.read()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    end_with_the_parent()
    try:
        run_cells([SparkCell(**cell) for cell in json.loads(sys.argv[1])])
    except BudgetError as error:
        say({"refused": str(error)})
    except StoreError as error:
        if error.code not in ("no_postgres", "no_flink"):
            raise
        say({"missing": str(error)})


if __name__ == "__main__":
    main()

__all__ = ["RUN_PREFIX", "SparkCell", "rates", "run_cells"]
