"""`tm.Shed`: a batch that is too large leaves rows for later, in a lane from which they come back when load is low."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.types import DoubleType, MapType, StringType, StructField, StructType, VariantType

from tidemill.core.errors import BudgetError, SpecError, unknown_choice
from tidemill.core.units import format_bytes, parse_bytes, parse_span_ms
from tidemill.join.parts.keys import StreamKey
from tidemill.join.shedding.catalog import STRATEGIES, strategy_for
from tidemill.join.shedding.strategy import Goal
from tidemill.spark.executors import context_of
from tidemill.spark.late import FATE_COLUMN, PARKED_AT_COLUMN, REASON_COLUMN, SHED_AT_COLUMN
from tidemill.spark.lookup import Lookup
from tidemill.spark.parking import query_id_of, set_aside
from tidemill.spark.parking_place import ParkingCounts, count_rows, open_place, prepare_place
from tidemill.spark.shed_choice import ShedChoice, chosen_strategy
from tidemill.spark.shed_counts import counts_name
from tidemill.spark.shed_lane import Rules, note_load, prepare_lane
from tidemill.spark.shed_source import ShedDataSource
from tidemill.spark.shed_task import DRAW_COLUMN, KEPT_SHARE_COLUMN, SHED_REASON_COLUMN, HostedShed

_WAS_PARKED_AT = "_was_parked_at"
_COUNTS_SHARE = 2
"""Of the memory, one through it for match counts where a strategy needs them."""


class ShedParts(NamedTuple):
    """What shedding does in a call, and the memory that it takes for it."""

    choice: ShedChoice
    counts_bytes: int
    """Once a host, for master rows by key."""
    worker_bytes: int
    """Of each worker, for rows that wait for the end of their batch."""


class Shed:
    """When a batch leaves rows for later, which ones, and where they wait.

    ```
    stream ──┬─▶ enrich(shed=…) ─▶ foreachBatch: shed.write, split_fates
             └──────◀── with_shed ◀── rows shed before, as many as the last batch left room for
    ```
    One query reads a lane; its checkpoint and the lane belong together.

    Args:
        path: Folder of the lane; driver and workers see the same one.
        rows: The most rows of a batch that are joined; the others are shed.
        seconds: In place of `rows`: as many rows as are joined in this span of time, such as "2 s", …
        rows_per_s: … at this rate, measured or predicted.
        goal: "most" results now, or a "sample" that permits estimates. With the kind of join it chooses the strategy.
        strategy: "auto", or keep, sample, top or cluster (docs/shedding.md).
        memory: On each host, of the budget of `enrich`: for rows that wait for the end of their batch, and for counts of
            master rows where a strategy needs them.
        quiet: After so long without a batch the load counts as low, whatever the last batch was.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        rows: int | None = None,
        seconds: str | None = None,
        rows_per_s: float | None = None,
        goal: Goal = "most",
        strategy: str = "auto",
        memory: str | int = "32 MB",
        quiet: str = "5 s",
    ) -> None:
        if (rows is None) == (seconds is None or rows_per_s is None):
            raise SpecError(
                f"rows={rows}, seconds={seconds!r}, rows_per_s={rows_per_s}",
                code="shed_limit",
                next_move="give rows=, or seconds= and rows_per_s=",
            )
        self.rows = rows if rows is not None else int(parse_span_ms(seconds or "") / 1000 * (rows_per_s or 0))
        if self.rows < 1:
            raise SpecError(
                f"a batch of {self.rows} rows joins nothing", code="shed_limit", next_move="give more rows"
            )
        if strategy not in ("auto", *STRATEGIES):
            raise unknown_choice("shedding strategy", strategy, ["auto", *sorted(STRATEGIES)])
        strategy_for(goal, many_to_many=False)
        self.path = Path(path).resolve()
        self.goal: Goal = goal
        self.strategy = strategy
        self.memory_bytes = parse_bytes(memory)
        self.quiet_ms = parse_span_ms(quiet)

    def returning(
        self, spark: SparkSession, stream: StructType, *, max_rows_per_batch: int = 100_000
    ) -> DataFrame:
        """Shed rows on their way back, as a streaming DataFrame: the stream's columns, and `_shed_at`.

        Each comes back once: as many at a time as the last batch left free of `rows`, none after one that shed.

        Args:
            spark: Session to read with.
            stream: Schema of the rows that may be shed.
            max_rows_per_batch: Admission limit of one micro-batch.
        """
        self._prepare(stream)
        spark.dataSource.register(ShedDataSource)
        loaded = (
            spark.readStream.format(ShedDataSource.name())
            .option("path", str(self.path))
            .option("maxRowsPerBatch", max_rows_per_batch)
            .option("roomRows", self.rows)
            .option("quietMs", self.quiet_ms)
            .load()
        )
        back = loaded.drop(REASON_COLUMN).withColumnRenamed(PARKED_AT_COLUMN, SHED_AT_COLUMN)
        return back.withColumnRenamed(_WAS_PARKED_AT, PARKED_AT_COLUMN)

    def write(self, batch: DataFrame, batch_id: int, *, query_id: str | None = None) -> int:
        """Set the rows of a micro-batch aside that were shed, durably and once; how many they are.

        To be called in `foreachBatch` with the whole batch. It also notes how busy the batch was, which is what brings rows
        back: call it for every batch.

        Args:
            batch: What `enrich(shed=…)` gave.
            batch_id: As Spark tells it.
            query_id: Of the streaming query; found out where the session can tell.
        """
        query = query_id or query_id_of(batch.sparkSession)
        names = open_place(self.path).schema.names
        shed = batch.where(F.col(FATE_COLUMN) == "shed")
        if _WAS_PARKED_AT in names:
            shed = shed.withColumnRenamed(PARKED_AT_COLUMN, _WAS_PARKED_AT)
        shed = shed.withColumn(PARKED_AT_COLUMN, F.current_timestamp()).select(*names)
        rows = set_aside(shed, self.path, (query, batch_id), point="shedding")
        note_load(self.path, query, batch_id)
        return rows

    def counts(self) -> ParkingCounts:
        """Rows shed (`parked`), waiting, and come back (`released`) until now."""
        return count_rows(self.path)

    # What `enrich` asks.

    def check(self, rows: DataFrame) -> None:
        """Refuse rows that cannot be shed, before anything starts."""
        if not rows.isStreaming:
            raise SpecError(
                "shed= on rows that are no stream",
                code="shed_batch",
                next_move="enrich the stream itself, not the batch inside foreachBatch",
            )
        if context_of(rows) is None:
            # There foreachBatch calls back from a session of its own, whose tasks carry neither query nor batch id:
            # rows of a batch that is run again could not be told from those of the next.
            raise SpecError(
                "shed= over Spark Connect, where tasks do not know their batch",
                code="shed_connect",
                next_move="run this query with a classic session (spark-submit), or enrich without shed=",
            )

    def memory_left(self, memory: str | int) -> str | int:
        """Of the budget of `enrich`, for the join; "auto" finds what the join needs, and this comes on top."""
        if memory == "auto":
            return memory
        total_bytes = parse_bytes(memory)
        if total_bytes <= self.memory_bytes:
            raise BudgetError(
                f"memory={format_bytes(total_bytes)}, and shedding alone has {format_bytes(self.memory_bytes)} of it",
                code="shed_memory",
                next_move="give enrich more memory, or Shed(memory=…) less",
                total_bytes=total_bytes,
                shed_bytes=self.memory_bytes,
            )
        return total_bytes - self.memory_bytes

    def schema_through_the_join(self, rows: StructType) -> StructType:
        """Of the rows with what is told of them."""
        told = [StructField(SHED_REASON_COLUMN, StringType()), StructField(KEPT_SHARE_COLUMN, DoubleType())]
        return StructType([*rows.fields, *told])

    def dealt(self, rows: DataFrame, tasks: int) -> DataFrame:
        """The rows with a draw each, dealt out by it.

        Draw and part hang on the row's columns and the batch's time alone: a re-run gives each row both again, however
        the source cuts its rows then.
        """
        hashed = [_hashable(field) for field in rows.schema if field.name != SHED_AT_COLUMN]
        draw = F.xxhash64(*hashed, F.unix_micros(F.current_timestamp()))
        return rows.withColumn(DRAW_COLUMN, draw).repartition(tasks, DRAW_COLUMN)

    def parts(self, lookups: Sequence[Lookup], workers: int) -> "ShedParts":
        """The strategy for these lookups, and what it holds; nothing is written."""
        choice = chosen_strategy(self.strategy, self.goal, lookups)
        counts_bytes = self.memory_bytes // _COUNTS_SHARE if choice.needs_counts else 0
        return ShedParts(choice, counts_bytes, (self.memory_bytes - counts_bytes) // workers)

    def hosted(
        self, schema: StructType, lookups: Sequence[Lookup], key: StreamKey, *, tasks: int, workers: int
    ) -> HostedShed:
        """What the workers must know."""
        self._prepare(schema)
        choice, counts_bytes, worker_bytes = self.parts(lookups, workers)
        counts = None
        if choice.needs_counts:
            counts = counts_name(self.path, lookups[0].master, memory_bytes=counts_bytes)
        return HostedShed(
            path=self.path,
            tasks=prepare_lane(self.path, tasks),
            wish=Rules(self.rows, choice.strategy, counts),
            memory_bytes=worker_bytes,
            key=key,
            least_results=choice.least_results,
        )

    def _prepare(self, stream: StructType) -> None:
        fields = [
            StructField(_WAS_PARKED_AT if f.name == PARKED_AT_COLUMN else f.name, f.dataType)
            for f in stream
            if f.name != SHED_AT_COLUMN
        ]
        prepare_place(self.path, StructType([*fields, StructField(REASON_COLUMN, StringType())]))


def with_shed(stream: DataFrame, shed: Shed, *, max_rows_per_batch: int = 100_000) -> DataFrame:
    """The rows of the stream and those that come back, to go through the same `enrich`.

    `_shed_at` tells them apart: NULL for rows of the stream. A row that came back is not shed again.
    """
    back = shed.returning(stream.sparkSession, stream.schema, max_rows_per_batch=max_rows_per_batch)
    live = stream.withColumn(SHED_AT_COLUMN, F.lit(None).cast("timestamp"))
    return live.unionByName(back)


def with_shed_fates(rows: DataFrame, matched_as: str | None) -> DataFrame:
    """The rows with `_fate` and `_reason` of those that were shed; others keep theirs, or are joined."""
    reason = F.col(SHED_REASON_COLUMN)
    has_fate = FATE_COLUMN in rows.columns
    fate = F.col(FATE_COLUMN) if has_fate else F.lit("joined")
    other_reason = F.col(REASON_COLUMN) if has_fate else F.lit(None).cast("string")
    told = {
        FATE_COLUMN: F.when(reason.isNotNull(), "shed").otherwise(fate),
        REASON_COLUMN: F.coalesce(reason, other_reason),
    }
    if matched_as is not None:
        told[matched_as] = F.when(reason.isNull(), F.col(matched_as))
    return rows.withColumns(told).drop(SHED_REASON_COLUMN)


def _hashable(field: StructField) -> Column:
    """The column, as text where Spark has no hash of its type."""
    text = field.dataType.simpleString()
    has_no_hash = isinstance(field.dataType, (MapType, VariantType)) or "map<" in text or "variant" in text
    return F.to_json(F.struct(F.col(field.name))) if has_no_hash else F.col(field.name)


__all__ = ["Shed", "ShedParts", "with_shed", "with_shed_fates"]
