"""One master table that rows are enriched with: what was asked for, and what workers do about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidemill.core.errors import SpecError, unknown_choice
from tidemill.join.as_of import AsOf
from tidemill.join.catalog import JOINS
from tidemill.join.conditions import Condition, plan_without_key, refuse_conditions
from tidemill.join.output import Columns, How, OutputPlan
from tidemill.master import MasterData
from tidemill.spark.refresh import Refresh

On = str | Sequence[str] | Mapping[str, str]
DEFAULT_ALGORITHM = "tide"
"""What "auto" stands for until the cost models have chosen (`auto.py`); with a condition other than equal keys it is "mesh"."""
HOSTED = sorted(name for name, kind in JOINS.items() if hasattr(kind, "sizes_for"))
"""Joins that know before they start what they need; the one that all others are compared with holds all rows."""
_FOR_CONDITIONS = (
    "mesh",
    "a condition other than equal keys: rows meet every page of one scan after the other",
)


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """A master table for `tm.enrich`, where there are several.

    Args:
        master: Master store.
        on: Key column of the rows, as many as the master key has, or a mapping from columns of the rows to columns of
            the master key. Left out when there is a condition.
        how: inner, left, semi or anti.
        columns: Master columns to add, or a mapping from their names to new names; all but the key when left out.
        prefix: Before the names of master columns that are not renamed.
        matched_as: With how="left", a boolean column that is true where a master row matched.
        as_of: Time column of the rows: each meets the version of its master row that was valid then.
        condition: In place of equal keys, such as `Between`; for joins that scan.
    """

    master: MasterData
    on: On | None = None
    how: How = "left"
    columns: Columns | None = None
    prefix: str | None = None
    matched_as: str | None = None
    as_of: str | None = None
    condition: Condition | None = None


@dataclass(frozen=True)
class HostedLookup:
    """What a worker must know of a lookup; travels inside the function that Spark ships."""

    name: str
    master_path: Path
    version: int
    """Used outside of streaming queries; their batches claim one by `refresh`."""
    refresh: Refresh
    plan: OutputPlan
    as_of: AsOf | None
    condition: Condition | None
    algorithm: str
    why: str
    """It is this algorithm."""
    memory_bytes: int
    """On a host, for all workers together."""

    @property
    def output_schema(self) -> pa.Schema:
        return self.as_of.output_schema if self.as_of is not None else self.plan.output_schema


def planned(
    lookup: Lookup, rows: pa.Schema, *, algorithm: str, refresh: Refresh, memory_bytes: int
) -> HostedLookup:
    """The checked lookup for rows of that schema."""
    if algorithm != "auto" and algorithm not in HOSTED:
        raise unknown_choice("algorithm", algorithm, sorted(["auto", *HOSTED]))
    why = "asked for"
    if algorithm == "auto":
        algorithm, why = (DEFAULT_ALGORITHM, "") if lookup.condition is None else _FOR_CONDITIONS
    master = lookup.master
    plan, as_of = _plan(lookup, rows, algorithm)
    return HostedLookup(
        name=master.path.name,
        master_path=master.path.absolute(),
        version=master.version,
        refresh=refresh,
        plan=plan,
        as_of=as_of,
        condition=lookup.condition,
        algorithm=algorithm,
        why=why,
        memory_bytes=memory_bytes,
    )


def _plan(lookup: Lookup, rows: pa.Schema, algorithm: str) -> tuple[OutputPlan, AsOf | None]:
    master, how, matched_as = lookup.master, lookup.how, lookup.matched_as
    columns = _columns(lookup)
    if lookup.condition is not None:
        who_can = sorted(name for name, kind in JOINS.items() if getattr(kind, "takes_conditions", False))
        if algorithm not in who_can:
            raise refuse_conditions(algorithm, who_can)
        lookup.condition.check(rows, master.schema)
        return plan_without_key(
            rows, master.schema, master_key=master.key, how=how, columns=columns, matched_as=matched_as
        ), None
    key = _stream_key(lookup, rows)
    if lookup.as_of is not None:
        as_of = AsOf.of(
            rows, master, stream_key=key, time=lookup.as_of, how=how, columns=columns, matched_as=matched_as
        )
        return as_of.plan, as_of
    if master.history is not None:
        raise SpecError(
            f"the rows of {master.path.name} have a history, and nothing says which version is meant",
            code="no_as_of",
            next_move="name the time column of the rows, as_of=…",
        )
    return OutputPlan.of(
        rows, master.schema, stream_key=key, master_key=master.key, how=how, columns=columns, matched_as=matched_as
    ), None  # fmt: skip


def _stream_key(lookup: Lookup, rows: pa.Schema) -> str | list[str]:
    """Columns of the rows in the order of the master key."""
    on, key = lookup.on, list(lookup.master.key_columns)
    if on is None:
        raise SpecError(
            "neither a key column nor a condition was given",
            code="no_stream_key",
            next_move="give on=…, or condition=… for a join that scans",
        )
    if isinstance(on, Mapping):
        by_master = {theirs: ours for ours, theirs in on.items()}
        for theirs in by_master:
            if theirs not in key:
                raise unknown_choice("column of the master key", theirs, key)
        missing = [name for name in key if name not in by_master]
        if missing:
            raise SpecError(
                f"on={dict(on)!r} says nothing of {missing}",
                code="part_of_key",
                next_move=f"name a column for each of {key}",
            )
        on = [by_master[name] for name in key]
    names = [on] if isinstance(on, str) else list(on)
    for name in names:
        if name not in rows.names:
            raise unknown_choice("key column", name, rows.names)
    return names[0] if len(names) == 1 else names


def _columns(lookup: Lookup) -> Columns | None:
    if lookup.prefix is None or lookup.how in ("semi", "anti") or isinstance(lookup.columns, Mapping):
        return lookup.columns
    names = lookup.columns
    if names is None:
        master = lookup.master
        schema = master.history.schema if master.history is not None else master.schema
        names = [name for name in schema.names if name not in (*master.key_columns, master.key)]
    return {name: f"{lookup.prefix}{name}" for name in names}


__all__ = ["DEFAULT_ALGORITHM", "HOSTED", "HostedLookup", "Lookup", "On", "planned"]
