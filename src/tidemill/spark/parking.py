"""`tm.Parking`: where rows wait for their master row, outside of the stream, and come back from."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidemill.core.errors import SpecError, StoreError, unknown_choice
from tidemill.core.units import parse_span_ms
from tidemill.master import MasterData
from tidemill.master.expire import CLAIMS_FOLDER
from tidemill.spark.failpoint import die_if_told
from tidemill.spark.late import FATE_COLUMN, PARKED_AT_COLUMN
from tidemill.spark.parking_parts import (
    SEGMENTS,
    Part,
    aligned,
    read_segment,
    seal_segment,
    segment_name,
    write_part,
)
from tidemill.spark.parking_place import ParkingCounts, count_rows, open_place, prepare_place
from tidemill.spark.parking_source import ParkingDataSource

Then = Literal["emit", "reject", "default"]


class Parking:
    """A folder in which rows without a match wait until their master row comes, or until a deadline.

    ```
    stream ──┬─▶ enrich(late="park") ─▶ foreachBatch: split_fates, parking.write
             └──────◀── parking.rows ◀── parked rows whose key is in the master now, or whose time is over
    ```
    One query reads a parking; its checkpoint and the parking belong together.

    Args:
        path: Folder; driver and workers see the same one.
        master: The master data that the rows wait for; its current version is asked.
        on: Key columns of the rows, as given to `enrich`.
        deadline: Longest wait, counted from when a row was parked first.
        then: What follows: "emit" with NULLs, "reject", or a "default" member.
        default: Values of master columns, by their names in the output, for then="default".
    """

    def __init__(
        self,
        path: str | Path,
        master: MasterData,
        *,
        on: str | Sequence[str],
        deadline: str = "1 h",
        then: Then = "emit",
        default: Mapping[str, Any] | None = None,
    ) -> None:
        if then not in get_args(Then):
            raise unknown_choice("then", then, list(get_args(Then)))
        if (then == "default") != bool(default):
            raise SpecError(
                f"then={then!r} with default={dict(default or {})}",
                code="default_member",
                next_move='give then="default" and the values, default={"name": "unknown"}, together',
            )
        self.path = Path(path).resolve()
        self.master_path = master.path
        self.on = (on,) if isinstance(on, str) else tuple(on)
        self.deadline = deadline
        self.deadline_ms = parse_span_ms(deadline)
        self.then: Then = then
        self.default = dict(default or {})
        self._master = master

    def rows(
        self, spark: SparkSession, stream: StructType, *, max_rows_per_batch: int = 100_000
    ) -> DataFrame:
        """Parked rows that are due, as a streaming DataFrame: the stream's columns, and `_parked_at`.

        A row comes back once each time it was parked: soon after the current master version holds its key, or when
        its deadline has passed.

        Args:
            spark: Session to read with.
            stream: Schema of the rows that will be parked.
            max_rows_per_batch: Admission limit of one micro-batch.
        """
        for name in self.on:
            if name not in stream.names:
                raise unknown_choice("key column", name, stream.names)
        kinds = to_arrow_schema(stream, timezone="UTC")
        self._master.key_form.refuse_other_types(self.on, [kinds.field(name).type for name in self.on])
        prepare_place(self.path, stream)
        spark.dataSource.register(ParkingDataSource)
        return (
            spark.readStream.format(ParkingDataSource.name())
            .option("path", str(self.path))
            .option("masterPath", str(self.master_path))
            .option("on", "\n".join(self.on))
            .option("deadlineMs", self.deadline_ms)
            .option("maxRowsPerBatch", max_rows_per_batch)
            .load()
        )

    def write(self, batch: DataFrame, batch_id: int, *, query_id: str | None = None) -> int:
        """Park the rows of a micro-batch whose fate it is, durably and once; how many they are.

        To be called in `foreachBatch` with the whole batch. A batch that is re-run finds its rows parked and writes
        nothing.

        Args:
            batch: What `enrich(late="park")` gave.
            batch_id: As Spark tells it.
            query_id: Of the streaming query; found out where the session can tell.
        """
        place = open_place(self.path)
        query = query_id or query_id_of(batch.sparkSession)
        parked = batch.where(F.col(FATE_COLUMN) == "parked").select(*place.schema.names)
        return set_aside(
            parked,
            self.path,
            (query, batch_id),
            point="parking",
            looked_in=lambda: joined_version(self.master_path, query, batch_id),
        )

    def counts(self) -> ParkingCounts:
        """Rows parked, waiting, released and expired until now."""
        return count_rows(self.path)

    def refuse_other_join(self, on: str | Sequence[str], master: MasterData) -> None:
        """Stop when rows would come back by other keys, or other master data, than those they are joined by."""
        keys = (on,) if isinstance(on, str) else tuple(on)
        if keys != self.on or master.path != self.master_path:
            raise SpecError(
                f"the parking waits for {list(self.on)} in {self.master_path}, "
                f"the join asks for {list(keys)} in {master.path}",
                code="other_join",
                next_move="give Parking and enrich the same master and the same on",
            )

    def refuse_unknown_defaults(self, columns: Sequence[str]) -> None:
        for name in self.default:
            if name not in columns:
                raise unknown_choice("default column", name, list(columns))


class _PartWriter:
    """What a worker must know to write its rows; travels inside the function that Spark ships."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder, self._schema = folder, schema

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                part = write_part(self._folder, aligned(batch, self._schema))
                yield pa.RecordBatch.from_pydict({"part": [json.dumps(asdict(part))]})


def set_aside(
    rows: DataFrame,
    path: Path,
    batch: tuple[str, int],
    *,
    point: str,
    looked_in: Callable[[], str | None] = lambda: None,
) -> int:
    """How many rows the batch has put into this folder: all of these, or those of an earlier run of the batch.

    Args:
        rows: With the columns of the place.
        path: Of the place.
        batch: Query and number.
        point: Name for tests that die here.
        looked_in: Identity of the master version that the batch was joined with.
    """
    folder = path / SEGMENTS
    file = folder / segment_name(*batch)
    if file.exists():
        return read_segment(file).rows
    writer = _PartWriter(folder, to_arrow_schema(rows.schema, timezone="UTC"))
    answers = rows.mapInArrow(writer.write, "part string").collect()
    parts = tuple(Part(**json.loads(answer["part"])) for answer in answers)
    return seal_parts(parts, path, batch, point=point, looked_in=looked_in)


def seal_parts(
    parts: tuple[Part, ...],
    path: Path,
    batch: tuple[str, int],
    *,
    point: str,
    looked_in: Callable[[], str | None] = lambda: None,
) -> int:
    """How many rows these parts hold, which are now what the batch has put into this folder.

    Args:
        parts: Written by its tasks.
        path: Of the place.
        batch: Query and number.
        point: Name for tests that die here.
        looked_in: Identity of the master version that the batch was joined with.
    """
    folder = path / SEGMENTS
    die_if_told(f"before_{point}")
    if parts and not seal_segment(folder, *batch, parts, looked_in=looked_in()):
        for part in parts:  # another driver set this batch aside meanwhile
            (folder / part.file).unlink()
    if parts:
        die_if_told(f"after_{point}")
    return sum(part.rows for part in parts)


def with_parked(stream: DataFrame, parking: Parking, *, max_rows_per_batch: int = 100_000) -> DataFrame:
    """The rows of the stream and parked ones that are due, to go through the same `enrich`.

    `_parked_at` tells them apart: NULL for rows of the stream.
    """
    due = parking.rows(stream.sparkSession, stream.schema, max_rows_per_batch=max_rows_per_batch)
    live = stream.withColumn(PARKED_AT_COLUMN, F.lit(None).cast("timestamp"))
    return live.unionByName(due)


def joined_version(master_path: Path, query_id: str, batch_id: int) -> str | None:
    """Identity of the master version that the batch has claimed.

    None where it cannot be told: then rows are looked up in full.
    """
    try:
        claim = json.loads((master_path / CLAIMS_FOLDER / f"{query_id}.{batch_id}").read_text())
        return MasterData.open(master_path, int(claim["version"])).identity
    except (OSError, ValueError, KeyError, TypeError, StoreError):
        return None


def query_id_of(spark: SparkSession) -> str:
    found = None
    if hasattr(spark, "sparkContext"):
        found = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not found:
        raise SpecError(
            "write does not know its query",
            code="no_query_id",
            next_move="call it inside foreachBatch, or give query_id=",
        )
    return found


__all__ = [
    "Parking",
    "Then",
    "joined_version",
    "query_id_of",
    "seal_parts",
    "set_aside",
    "with_parked",
]
