"""`tm.enrich`: semi-stream joins hosted in Spark's Python workers, behind one call on a DataFrame."""

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidemill.core.errors import SpecError
from tidemill.join.conditions import Condition
from tidemill.join.output import Columns, How
from tidemill.master import MasterData
from tidemill.spark.auto import Wish, decided
from tidemill.spark.columns import METRICS_COLUMN
from tidemill.spark.executors import Reckoned, context_of, reckoned_tasks
from tidemill.spark.fate_counts import FateRules, fate_rules
from tidemill.spark.host import HostedJoins
from tidemill.spark.late import MATCHED_COLUMN, Late, check_late, late_output
from tidemill.spark.lookup import HostedLookup, Lookup, On, planned
from tidemill.spark.metrics import OBSERVED_PREFIX, observed
from tidemill.spark.parking import Parking
from tidemill.spark.refresh import Refresh
from tidemill.spark.several import divided_by_gain
from tidemill.spark.shed import Shed, with_shed_fates
from tidemill.spark.shed_task import SHED_REASON_COLUMN
from tidemill.spark.worker_join import check_budget

_POOL_VARIABLE = "TIDEMILL_JOIN"
_POOL_LOCK = threading.Lock()


def enrich(
    rows: DataFrame,
    master: MasterData | Sequence[Lookup],
    *,
    on: On | None = None,
    how: How = "left",
    columns: Columns | None = None,
    prefix: str | None = None,
    memory: str | int = "256 MB",
    algorithm: str = "auto",
    rate: float | None = None,
    zipf: float | None = None,
    matched_as: str | None = None,
    as_of: str | None = None,
    condition: Condition | None = None,
    late: Late = "emit",
    parking: Parking | None = None,
    shed: Shed | None = None,
    refresh: str = "batch",
    schema: StructType | None = None,
    tasks: int | None = None,
    observe_as: str | Observation | None = "auto",
    hot_rows: Path | str | None = None,
) -> DataFrame:
    """The rows joined with master data that may be far bigger than memory: a stream-static or lookup join.

    The master table is never scanned for a micro-batch: most rows meet a hot master row that stays in memory from
    batch to batch, the others wait until one page read serves all that need it. A batch uses one master version
    throughout, the same one again if it is re-run.

    Args:
        rows: Streaming or batch DataFrame.
        master: Master store, built once by `MasterData.build`; or several, each as a `Lookup`, which share the memory.
        on: Key column of the rows, as many as the master key has, or a mapping from columns of the rows to columns of
            the master key; NULL never matches.
        how: inner, left, semi or anti.
        columns: Master columns to add, or a mapping from their names to new names; all but the key when left out.
        prefix: Before the names of master columns that are not renamed.
        memory: Budget of this call on each host, for all of its workers together; "auto" for the least that is predicted to
            keep up with `rate`.
        algorithm: The name of a join, or "auto" for the one that the cost models find fastest (docs/tuning.md).
        rate: With memory="auto": rows a second that each host must keep up with.
        zipf: Skew of the keys, for the cost models; 0 is uniform, and 1 is assumed when left out.
        matched_as: With how="left", a boolean column that is true where a master row matched.
        as_of: Time column of the rows: each meets the version of its master row that was valid then.
        condition: In place of equal keys, such as `Between`; for joins that scan.
        late: What becomes of rows without a master row, with how="left": "emit" lets them leave with NULLs, "reject" and
            "park" tell their fate in a column `_fate` (docs/late-rows.md).
        parking: With late="park": where rows wait for their master row, and for how long.
        shed: Beyond how many rows a batch leaves some for later, which, and where they wait (docs/shedding.md). Adds
            `_fate`, `_reason` and `_kept_share`.
        refresh: When a streaming query goes over to newer master data: "batch", "30 s" and the like, or "never".
        schema: Of the rows, where they may not be asked for it, as in a declarative pipeline.
        tasks: Deal the rows out to so many tasks, for a source with fewer partitions than cores. When left out, the
            partitions are taken as they are, at most one a core that is there or promised: a read serves all rows of a task.
        observe_as: Name under which Spark's progress events say what the join did (`tm.watch` reads them); "auto" makes
            one for a stream. For a batch DataFrame an `Observation`. None spares 55 ns of CPU time a row.
        hot_rows: Folder for the hot rows that workers share; a folder of the system's when left out.
    """
    if late != "emit" or parking is not None or shed is not None:
        return _with_fates(rows, master, on, late, parking, shed, how=how, matched_as=matched_as, columns=columns, prefix=prefix,
            memory=memory, algorithm=algorithm, rate=rate, zipf=zipf, as_of=as_of, condition=condition, refresh=refresh, tasks=tasks,
            observe_as=observe_as, hot_rows=hot_rows)  # fmt: skip
    lookups = as_lookups(
        master, on=on, how=how, columns=columns, prefix=prefix, matched_as=matched_as, as_of=as_of, condition=condition
    )  # fmt: skip
    return _hosted(rows, lookups, None, memory=memory, algorithm=algorithm, rate=rate, zipf=zipf, refresh=refresh,
        schema=schema, tasks=tasks, observe_as=observe_as, hot_rows=hot_rows)  # fmt: skip


def _hosted(
    rows: DataFrame,
    lookups: list[Lookup],
    shed: Shed | None,
    *,
    memory: str | int,
    algorithm: str,
    rate: float | None,
    zipf: float | None,
    refresh: str,
    schema: StructType | None,
    tasks: int | None,
    observe_as: str | Observation | None,
    hot_rows: Path | str | None,
    fates: FateRules | None = None,
) -> DataFrame:
    """The rows through the joins, and around them where they are shed."""
    context = context_of(rows)
    row_schema = schema or rows.schema
    reckoned = reckoned_tasks(context, tasks)
    workers = reckoned.of_a_host
    if shed is not None:
        shed.check(rows)
        row_schema = shed.schema_through_the_join(row_schema)
        memory = shed.memory_left(memory)
    wish = Wish.of(memory=memory, algorithm=algorithm, rate=rate, zipf=zipf)
    told = plan_lookups(lookups, row_schema, Refresh.parse(refresh), wish, workers)
    token = uuid.uuid4().hex
    observation = _observation(rows, observe_as, schema, f"{OBSERVED_PREFIX} {told[0].name} {token[:8]}")
    hosted = HostedJoins(
        token=token,
        lookups=told,
        workers=workers,
        folder=Path(hot_rows).absolute() if hot_rows is not None else None,
        tells=observation is not None,
        fates=fates,
    )
    if shed is not None:
        even = tasks or reckoned.now
        key = told[0].plan.stream_key
        told_shed = shed.hosted(rows.schema, lookups, key, tasks=even, workers=hosted.workers)
        hosted, rows, tasks = replace(hosted, shed=told_shed), shed.dealt(rows, told_shed.tasks), None
    for lookup, hosted_lookup in zip(lookups, told, strict=True):
        check_budget(lookup.master, hosted_lookup, hosted.workers)
    output = _output_schema(hosted.output_schema, tells=hosted.tells, has_blanks=shed is not None)
    dealt = rows if shed is not None else _dealt(rows, reckoned, tasks, schema)
    with _own_pool(context):
        joined = dealt.mapInArrow(hosted.run_task, output)
    has_deadline = fates is not None and fates.deadline_ms is not None
    return joined if observation is None else observed(joined, observation, tells_now=has_deadline)


def _with_fates(
    rows: DataFrame,
    master: MasterData | Sequence[Lookup],
    on: On | None,
    late: Late,
    parking: Parking | None,
    shed: Shed | None,
    *,
    how: How,
    matched_as: str | None,
    columns: Columns | None,
    prefix: str | None,
    as_of: str | None,
    condition: Condition | None,
    **wishes: Any,
) -> DataFrame:
    """The rows joined or shed, each with its fate."""
    key = on if isinstance(on, str) else list(on or [])  # of a mapping, the columns of the rows
    if late != "emit" or parking is not None:
        check_late(late, how, parking, on=key, master=master, is_streaming=rows.isStreaming)
    marked = matched_as or (MATCHED_COLUMN if late != "emit" else None)
    rules = fate_rules(marked if late != "emit" else None, key, parking)
    lookups = as_lookups(
        master, on=on, how=how, columns=columns, prefix=prefix, matched_as=marked, as_of=as_of, condition=condition
    )  # fmt: skip
    fated = _hosted(rows, lookups, shed, schema=None, fates=rules, **wishes)
    if marked is not None and late != "emit":
        if shed is not None:  # such a row has not looked for its master row: no late fate is for it
            fated = fated.withColumn(marked, sf.col(marked) | sf.col(SHED_REASON_COLUMN).isNotNull())
        fated = late_output(fated, on=key, matched_as=marked, late=late, parking=parking)
    return fated if shed is None else with_shed_fates(fated, matched_as)


def as_lookups(master: MasterData | Sequence[Lookup], *, how: How, **wishes: Any) -> list[Lookup]:
    """The lookups of a call, whichever way they were given."""
    if isinstance(master, MasterData):
        return [Lookup(master=master, how=how, **wishes)]
    named = [name for name, value in wishes.items() if value is not None]
    if named:
        raise SpecError(
            f"{', '.join(named)} beside a list of lookups",
            code="not_of_a_lookup",
            next_move="give it to the Lookup that it is meant for",
        )
    return list(master)


def _observation(
    rows: DataFrame, wish: str | Observation | None, schema: StructType | None, own_name: str
) -> str | Observation | None:
    if wish != "auto":
        return wish
    # In a declarative pipeline, where a schema is given, rows may not be asked; a batch has no progress events.
    return own_name if schema is None and rows.isStreaming else None


def plan_lookups(
    lookups: list[Lookup], rows: StructType, refresh: Refresh, wish: Wish, workers: int
) -> tuple[HostedLookup, ...]:
    """Each lookup on the output of the one before it, with memory where it saves most or by its rate."""
    if not lookups:
        raise SpecError("there is nothing to enrich with", code="no_master", next_move="give a master store")
    arrow_rows = to_arrow_schema(rows, timezone="UTC")
    wish = wish.divided(len(lookups))
    chain: list[HostedLookup] = []
    for lookup in lookups:
        chain.append(planned(lookup, arrow_rows, algorithm=wish.algorithm, refresh=refresh, memory_bytes=0))
        arrow_rows = chain[-1].output_schema
    masters = [lookup.master for lookup in lookups]
    memory = divided_by_gain(chain, masters, wish, workers)
    return tuple(
        decided(replace(told, memory_bytes=own_bytes), master, wish, workers)
        for told, master, own_bytes in zip(chain, masters, memory, strict=True)
    )


def _dealt(rows: DataFrame, reckoned: Reckoned, tasks: int | None, schema: StructType | None) -> DataFrame:
    """The rows in as many partitions as tasks should have."""
    if schema is not None:
        rows = rows.to(schema)
    if tasks is not None:
        return rows.repartition(tasks)
    # Two tasks on one core would read the same pages one after the other.
    return rows if reckoned.at_most is None else rows.coalesce(reckoned.at_most)


def _output_schema(schema: pa.Schema, *, tells: bool, has_blanks: bool = False) -> StructType:
    if has_blanks:
        schema = pa.schema([field.with_nullable(True) for field in schema])
    if tells:
        if METRICS_COLUMN in schema.names:
            raise SpecError(
                f"the rows have a column {METRICS_COLUMN!r} already",
                code="column_twice",
                next_move="rename it, or call enrich with observe_as=None",
            )
        schema = schema.append(pa.field(METRICS_COLUMN, pa.string()))
    return from_arrow_schema(schema, prefer_timestamp_ntz=False)


@contextmanager
def _own_pool(context: SparkContext | None) -> Iterator[None]:
    """Ship the function with an environment of its own, hence with a pool of workers of its own.

    The environment is the context's: one thread at a time changes it.
    """
    if context is None:
        yield
        return
    with _POOL_LOCK:
        context.environment[_POOL_VARIABLE] = "1"
        try:
            yield
        finally:
            context.environment.pop(_POOL_VARIABLE, None)


__all__ = [
    "as_lookups",
    "enrich",
    "plan_lookups",
]
