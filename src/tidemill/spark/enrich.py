"""`tm.enrich`: a semi-stream join hosted in Spark's Python workers, behind one call on a DataFrame."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidemill.core.errors import SpecError, unknown_choice
from tidemill.core.units import parse_bytes
from tidemill.join.catalog import JOINS
from tidemill.join.output import Columns, How, OutputPlan
from tidemill.master import MasterData
from tidemill.spark.columns import METRICS_COLUMN
from tidemill.spark.host import HostedJoin
from tidemill.spark.worker_join import check_budget

DEFAULT_ALGORITHM = "tide"
"""What "auto" means until the cost models choose."""
_POOL_VARIABLE = "TIDEMILL_JOIN"
_PYTHON_FUNCTIONS_OF_A_STAGE = 3
"""Where the join shares its pool of workers: source, join and sink run in workers of their own at a time."""


def enrich(
    rows: DataFrame,
    master: MasterData,
    *,
    on: str | Sequence[str],
    how: How = "left",
    columns: Columns | None = None,
    memory: str | int = "256 MB",
    algorithm: str = "auto",
    matched_as: str | None = None,
    metrics: bool = False,
    hot_rows: Path | str | None = None,
) -> DataFrame:
    """The rows joined with master data that may be far bigger than memory: a stream-static or lookup join.

    The master table is never scanned for a micro-batch: most rows meet a hot master row that stays in memory from
    batch to batch, the others wait until one page read serves all that need it. A batch uses one master version
    throughout, the same one again if it is re-run.

    Args:
        rows: Streaming or batch DataFrame.
        master: Master store, built once by `MasterData.build`.
        on: Key column of the rows, or as many as the master key has; NULL never matches.
        how: inner, left, semi or anti.
        columns: Master columns to add, or a mapping from their names to new names; all but the key when left out.
        memory: Budget of this join on each host, for all of its workers together.
        algorithm: "auto" or the name of a join.
        matched_as: With how="left", a boolean column that is true where a master row matched.
        metrics: Adds `_metrics`, a text column with what the join did (JSON, in one row a task).
        hot_rows: Folder for the hot rows that workers share; a folder of the system's when left out.
    """
    if algorithm != "auto" and algorithm not in JOINS:
        raise unknown_choice("algorithm", algorithm, sorted(["auto", *JOINS]))
    algorithm = DEFAULT_ALGORITHM if algorithm == "auto" else algorithm
    for name in [on] if isinstance(on, str) else on:
        if name not in rows.columns:
            raise unknown_choice("key column", name, rows.columns)
    plan = OutputPlan.of(
        to_arrow_schema(rows.schema, timezone="UTC"),
        master.schema,
        stream_key=on,
        master_key=master.key,
        how=how,
        columns=columns,
        matched_as=matched_as,
    )
    folder = Path(hot_rows) if hot_rows is not None else _own_temporary_folder()
    context = SparkContext._active_spark_context  # noqa: SLF001 - the public call would start one
    hosted = HostedJoin(
        master_path=master.path,
        pinned_version=None if rows.isStreaming else master.version,
        plan=plan,
        algorithm=algorithm,
        memory_bytes=parse_bytes(memory),
        workers=_workers(context),
        folder=folder.resolve(),
        metrics=metrics,
    )
    check_budget(master, plan, algorithm, hosted.memory_bytes, hosted.workers)
    with _own_pool(context):
        return rows.mapInArrow(hosted.run_task, _output_schema(plan, metrics=metrics))


def _own_temporary_folder() -> Path:
    """A folder under the system's temporary one that nobody else could have filled."""
    folder = Path(tempfile.gettempdir()) / f"tidemill-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise SpecError(
            f"{folder} belongs to somebody else",
            code="foreign_folder",
            next_move="name a folder with hot_rows=",
        )
    return folder


def _output_schema(plan: OutputPlan, *, metrics: bool) -> StructType:
    schema = plan.output_schema
    if metrics:
        if METRICS_COLUMN in schema.names:
            raise SpecError(
                f"the rows have a column {METRICS_COLUMN!r} already",
                code="column_twice",
                next_move="rename it, or call enrich with metrics=False",
            )
        schema = schema.append(pa.field(METRICS_COLUMN, pa.string()))
    return from_arrow_schema(schema, prefer_timestamp_ntz=False)


def _workers(context: SparkContext | None) -> int:
    """Processes of a host that may hold the join at a time."""
    if context is None:  # Spark Connect: neither the cores nor the pool are ours to know
        return _PYTHON_FUNCTIONS_OF_A_STAGE * (os.cpu_count() or 1)
    return int(context.defaultParallelism)


@contextmanager
def _own_pool(context: SparkContext | None) -> Iterator[None]:
    """Ship the function with an environment of its own, hence with a pool of workers of its own."""
    if context is None:
        yield
        return
    context.environment[_POOL_VARIABLE] = "1"
    try:
        yield
    finally:
        del context.environment[_POOL_VARIABLE]


__all__ = ["enrich"]
