"""What the joins of a task did, told in one row behind its rows; Spark's `observe` collects it and the row goes.

The row travels with the task's result, so a task that is retried tells once. One aggregate sees every row: nine cost
87 ns of CPU time a row, one costs 5, the column and its drop 50.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sf

from tidemill.join.protocol import StepReport
from tidemill.spark.columns import METRICS_COLUMN

OBSERVED_PREFIX = "tidemill"
TASKS_FIELD = "tidemill_tasks"
"""Of an observation: what each task told, a line of JSON each."""
_NOW_FOLLOWS = "\t"
"""In a line where rows wait: JSON has no such sign in it. Then the time of the batch, by which deadlines are told."""
COUNTS = ("rows_in", "hot_hits", "disk_matches", "unmatched", "pages_read", "bytes_read")


class LookupTotals:
    """What the steps of one lookup did in a task.

    Args:
        facts: Of the master data that the task used.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._held_bytes: dict[str, int] = {}
        self._rows_with_version: int | None = None

    def add(self, report: StepReport, hot_bytes: int) -> None:
        """Count a step; `hot_bytes` are those of the file that the workers of a host share."""
        for name in COUNTS:
            self._counts[name] += getattr(report, name)
        for phase, seconds in report.seconds.items():
            self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds
        for name, size in {**report.held_bytes, "shared_hot_rows": hot_bytes}.items():
            self._held_bytes[name] = max(size, self._held_bytes.get(name, 0))

    def add_versions(self, rows: int) -> None:
        """Count rows that met a version valid at their time."""
        self._rows_with_version = rows + (self._rows_with_version or 0)

    def as_dict(self) -> dict[str, Any]:
        counts = {name: self._counts[name] for name in COUNTS}
        counts["without_version"] = 0
        if (
            self._rows_with_version is not None
        ):  # the join counts keys: a key may be there without a valid version
            unmatched = counts["rows_in"] - self._rows_with_version
            counts |= {"unmatched": unmatched, "without_version": unmatched - counts["unmatched"]}
        seconds = {phase: round(spent, 6) for phase, spent in self._seconds.items()}
        held = {name: size for name, size in self._held_bytes.items() if size}
        return {**self._facts, **counts, "seconds": seconds, "held_bytes": held}


def with_metrics_column(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with an empty column for what the task tells."""
    return rows.append_column(METRICS_COLUMN, pa.nulls(rows.num_rows, pa.string()))


def telling_row(
    schema: pa.Schema,
    partition: int,
    lookups: list[LookupTotals],
    shed: Mapping[str, Any] | None = None,
    fates: Mapping[str, Any] | None = None,
) -> pa.RecordBatch:
    """A row that holds nothing but what the task tells.

    Args:
        schema: Of the task's output, without the column of metrics.
        partition: Tells the task from others of its batch.
        lookups: In their order.
        shed: What became of the rows before the joins, where rows may be shed.
        fates: What is known of the fates of rows behind the joins, where they have fates.
    """
    words: dict[str, Any] = {"partition": partition, "lookups": [lookup.as_dict() for lookup in lookups]}
    more = {"shed": shed, "fates": fates}
    told = json.dumps(words | {name: said for name, said in more.items() if said is not None})
    blanks = [_blank(field) for field in schema]
    return pa.RecordBatch.from_arrays(
        [*blanks, pa.array([told])], schema=schema.append(pa.field(METRICS_COLUMN, pa.string()))
    )


def _blank(field: "pa.Field[Any]") -> "pa.Array[Any]":
    """One value: NULL where that is allowed, else whatever zeros mean, since Spark does not ask for NULLs there."""
    empty: pa.Array[Any] = pa.nulls(1, field.type)
    if field.nullable:
        return empty
    if isinstance(field.type, pa.StructType):
        children = [_blank(field.type.field(number)) for number in range(field.type.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(field.type))
    if pa.types.is_map(field.type) or pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
        return pa.array([[]], field.type)
    return pa.Array.from_buffers(field.type, 1, [None, *empty.buffers()[1:]])


def observed(rows: DataFrame, observation: str | Observation, *, tells_now: bool = False) -> DataFrame:
    """The rows without those that tell, and without their column; the observation has what they told.

    Args:
        rows: With those that tell.
        observation: Or its name.
        tells_now: Whether each task's words are followed by the time of the batch, which Spark alone knows.
    """
    # Text: over Spark Connect a listener gets flat rows only.
    words = sf.col(METRICS_COLUMN)
    told = sf.array_join(sf.collect_list(words), "\n")
    if tells_now:
        # Asked for only where there are words: an aggregate of its own would see every row. In an observation Spark takes
        # the time inside of an aggregate alone, and with nothing around that.
        now = sf.unix_millis(sf.current_timestamp()).cast("string")
        words = sf.when(words.isNotNull(), sf.concat(words, sf.lit(_NOW_FOLLOWS), now))
        told = sf.listagg(words, sf.lit("\n"))
    seen = rows.observe(observation, told.alias(TASKS_FIELD))
    return seen.where(sf.col(METRICS_COLUMN).isNull()).drop(METRICS_COLUMN)


def tasks_told(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What each task of an observation told, a partition once.

    A batch that `foreachBatch` computes twice tells twice: the later of the two counts.
    """
    by_partition: dict[int, dict[str, Any]] = {}
    for line in str(row[TASKS_FIELD] or "").splitlines():
        words, _, now_ms = line.partition(_NOW_FOLLOWS)
        told = json.loads(words)
        if now_ms:
            told["now_ms"] = int(now_ms)
        by_partition[told["partition"]] = told
    yield from by_partition.values()


__all__ = ["OBSERVED_PREFIX", "TASKS_FIELD", "LookupTotals", "observed", "tasks_told", "telling_row", "with_metrics_column"]  # fmt: skip
