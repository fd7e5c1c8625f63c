"""`tm.explain`: what a call of `tm.enrich` would do, with which memory, and what its session lacks."""

import inspect
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame
from rich.console import Console, Group
from rich.table import Table

from tidemill.core.units import format_bytes, format_count
from tidemill.join.catalog import JOINS
from tidemill.join.tide import TideJoin
from tidemill.master import MasterData
from tidemill.spark.auto import Wish
from tidemill.spark.enrich import as_lookups, enrich, plan_lookups
from tidemill.spark.executors import context_of, reckoned_tasks
from tidemill.spark.explain_late import LateExplained, explained_late, lines_of_late
from tidemill.spark.explain_settings import MissingSetting, missing_settings
from tidemill.spark.explain_shed import ShedExplained, explained_shed, lines_of_shed
from tidemill.spark.late import MATCHED_COLUMN, check_late
from tidemill.spark.lookup import HostedLookup, Lookup
from tidemill.spark.refresh import Refresh
from tidemill.spark.shed import Shed
from tidemill.spark.worker_join import HostShares, check_budget, join_bytes

_OF_A_LOOKUP = ("on", "how", "columns", "prefix", "matched_as", "as_of", "condition")


@dataclass(frozen=True, kw_only=True)
class LookupExplained:
    """One master table of a call."""

    lookup: str
    path: str
    algorithm: str
    why: str
    how: str
    version: int
    version_age_seconds: float
    master_rows: int
    master_bytes: int
    """As Arrow columns, by the mean size of a row."""
    memory_bytes: int
    """On a host, for all workers together."""
    memory_share: float
    """Of the bytes of the master data."""
    shared_bytes: dict[str, int]
    """Once a host."""
    worker_bytes: dict[str, int]
    """For each worker, by reservation."""
    columns_added: list[str]
    columns_read: list[str]
    """By the join, from the rows of the master data, of which a page holds whole ones."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What `tm.enrich` would do with the same arguments."""

    memory_bytes: int
    workers: int
    """Of a host, which share the memory."""
    tasks: str
    refresh: str
    observed: str
    lookups: tuple[LookupExplained, ...]
    late: LateExplained | None
    """None where rows without a master row leave with NULLs."""
    shed: ShedExplained | None
    """None where no rows may be shed."""
    missing_settings: tuple[MissingSetting, ...]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def __rich__(self) -> Group:
        tables = [_grid(f"tm.enrich with {told.lookup}", _lines(told)) for told in self.lookups]
        if self.late is not None:
            tables.append(_grid("Late rows", lines_of_late(self.late)))
        if self.shed is not None:
            tables.append(_grid("Beyond its capacity", lines_of_shed(self.shed)))
        host = {
            "memory of a host": f"{format_bytes(self.memory_bytes)} for {self.workers} workers",
            "tasks": self.tasks,
            "refresh": self.refresh,
            "metrics": self.observed,
        }
        return Group(*tables, _grid("The call", host.items()), self._settings())

    def _settings(self) -> Table:
        if not self.missing_settings:
            return _grid("The session", [("settings", "none is missing")])
        table = Table("setting", "is", "effect of the right one, and how", title="What the session lacks")
        for missing in self.missing_settings:
            told = f"{missing.effect}\n{missing.fix}"
            table.add_row(missing.key, missing.found or "Spark's default", told)
        return table


def explain(
    rows: DataFrame,
    master: MasterData | Sequence[Lookup],
    *,
    console: Console | None = None,
    **arguments: Any,
) -> Explanation:
    """What `tm.enrich` would do and why, printed and given back; nothing is run.

    Args:
        rows: As for `enrich`.
        master: As for `enrich`.
        console: Where it is printed; standard output when left out.
        arguments: As for `enrich`, with the same errors where it would refuse them.
    """
    bound = inspect.signature(enrich).bind(rows, master, **arguments)
    bound.apply_defaults()
    asked = bound.arguments
    late, parking = asked["late"], asked["parking"]
    if late != "emit" or parking is not None:
        told_on = asked["on"]  # of a mapping, the columns of the rows
        key = told_on if isinstance(told_on, str) else list(told_on or [])
        check_late(late, asked["how"], parking, on=key, master=master, is_streaming=rows.isStreaming)
        asked["matched_as"] = asked["matched_as"] or MATCHED_COLUMN
    lookups = as_lookups(master, **{name: asked[name] for name in _OF_A_LOOKUP})
    refresh = Refresh.parse(asked["refresh"])
    shed: Shed | None = asked["shed"]
    row_schema = asked["schema"] or rows.schema
    if shed is not None:
        shed.check(rows)
        row_schema = shed.schema_through_the_join(row_schema)
        asked["memory"] = shed.memory_left(asked["memory"])
    wish = Wish.of(**{name: asked[name] for name in ("memory", "algorithm", "rate", "zipf")})
    context = context_of(rows)
    reckoned = reckoned_tasks(context, asked["tasks"])
    workers = reckoned.of_a_host
    planned = plan_lookups(lookups, row_schema, refresh, wish, workers)
    session = rows.sparkSession
    told = Explanation(
        memory_bytes=sum(hosted.memory_bytes for hosted in planned) + (shed.memory_bytes if shed else 0),
        workers=workers,
        tasks=_tasks(asked["tasks"], reckoned.at_most),
        refresh=_refresh(refresh, is_streaming=asked["schema"] is not None or rows.isStreaming),
        observed=_observed(asked["observe_as"], is_streaming=asked["schema"] is None and rows.isStreaming),
        lookups=tuple(
            _explained(lookup, hosted, workers) for lookup, hosted in zip(lookups, planned, strict=True)
        ),
        late=explained_late(late, parking, planned[-1].output_schema.names),
        shed=None
        if shed is None or context is None
        else explained_shed(
            shed,
            lookups,
            row_bytes=planned[0].plan.stream_row_bytes,
            tasks=asked["tasks"] or reckoned.now,
            workers=workers,
        ),
        missing_settings=tuple(missing_settings(lambda key: session.conf.get(key, None))),
    )
    (console or Console()).print(told)
    return told


def _explained(lookup: Lookup, hosted: HostedLookup, workers: int) -> LookupExplained:
    master = lookup.master
    check_budget(master, hosted, workers)
    master_bytes = master.rows * master.row_bytes
    plan = hosted.plan
    shared, worker = _division(master, hosted, workers)
    transport = hosted.memory_bytes - workers * join_bytes(hosted.memory_bytes, workers)
    wished = hosted.as_of.wish if hosted.as_of is not None else plan
    return LookupExplained(
        lookup=hosted.name,
        path=str(hosted.master_path),
        algorithm=hosted.algorithm,
        why=hosted.why,
        how=lookup.how,
        version=master.version,
        version_age_seconds=round(time.time() - master.manifest.created_unix_ms / 1000, 1),
        master_rows=master.rows,
        master_bytes=master_bytes,
        memory_bytes=hosted.memory_bytes,
        memory_share=hosted.memory_bytes / max(1, master_bytes),
        shared_bytes={**shared, "transport": transport},
        worker_bytes=worker,
        columns_added=[
            name
            for name in wished.output_schema.names
            if name not in (*plan.stream_schema.names, MATCHED_COLUMN)
        ],
        columns_read=list(dict.fromkeys((master.key, *plan.master_columns))),
    )


def _division(
    master: MasterData, hosted: HostedLookup, workers: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes that a host holds once, and bytes of each worker."""
    if hosted.algorithm == TideJoin.name:
        shares = HostShares.of(master, hosted.plan, hosted.memory_bytes, workers)
        posted = {"posted_pages": shares.board_bytes} if shares.board_bytes else {}
        return {"hot_rows": shares.hot_bytes, **posted}, _parts(shares.worker)
    kind: Any = JOINS[hosted.algorithm]
    return {}, _parts(kind.sizes_for(master, hosted.plan, join_bytes(hosted.memory_bytes, workers)))


def _parts(sizes: object) -> dict[str, int]:
    return {
        name.removesuffix("_bytes"): value for name, value in vars(sizes).items() if name.endswith("_bytes")
    }


def _tasks(wish: int | None, cores: int | None) -> str:
    if wish is not None:
        return f"rows are dealt out to {wish} by a shuffle"
    if cores is None:
        return "one for each partition of the rows; where they are fewer than cores, tasks= deals rows out"
    return (
        f"one for each partition of the rows, at most {cores}: two on a core would read the same pages; "
        f"where there are fewer partitions, tasks={cores} deals the rows out"
    )


def _refresh(refresh: Refresh, *, is_streaming: bool) -> str:
    if not is_streaming:
        return "a batch uses the version named here"
    if math.isinf(refresh.every_seconds):
        return "never: the query keeps the version of its first batch"
    if refresh.every_seconds:
        return f"a version stays for {refresh.every_seconds:g} s, then the next batch takes the current one"
    return "each batch takes the version that is current when it begins"


def _observed(wish: object, *, is_streaming: bool) -> str:
    if wish is None or (wish == "auto" and not is_streaming):
        return "none: name them with observe_as="
    return (
        "in Spark's progress events; tm.watch(spark) collects them" if is_streaming else "in the observation"
    )


def _lines(told: LookupExplained) -> Iterator[tuple[str, str]]:
    yield "algorithm", f"{told.algorithm}, {told.how}: {told.why}"
    yield "master data", f"{told.path}, version {told.version}, {told.version_age_seconds:,.0f} s old"
    yield "", f"{format_count(told.master_rows)} rows, {format_bytes(told.master_bytes)}"
    yield "memory", f"{format_bytes(told.memory_bytes)}, {told.memory_share:.1%} of the master data"
    yield "once a host", _sizes(told.shared_bytes)
    yield "each worker", _sizes(told.worker_bytes)
    yield "columns read", ", ".join(told.columns_read)
    yield "columns added", ", ".join(told.columns_added) or "none"


def _sizes(parts: dict[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())


def _grid(title: str, lines: Any) -> Table:
    table = Table(title=title, show_header=False)
    for name, text in lines:
        table.add_row(name, text)
    return table


__all__ = ["Explanation", "LookupExplained", "explain"]
