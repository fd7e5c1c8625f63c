"""What a batch did, by lookup: the tasks' words as typed records."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidemill.spark.metrics import tasks_told


@dataclass(frozen=True, kw_only=True)
class LookupMetrics:
    """One lookup, in a task, a batch or several of them."""

    lookup: str
    """Name of the master store's folder."""
    versions: tuple[int, ...]
    """Of the master data, those that were used."""
    master_rows: int
    """Of the newest of them."""
    master_created_unix_ms: int
    tasks: int
    rows_in: int
    hot_hits: int
    disk_matches: int
    """As `hot_hits`, rows whose key was found."""
    unmatched: int
    without_version: int
    """With as_of: unmatched rows whose key was found."""
    pages_read: int
    bytes_read: int
    seconds: Mapping[str, float]
    """By phase, of all tasks together."""
    held_bytes: Mapping[str, int]
    """By reservation, the most that one task held at the end of a step; `shared_hot_rows` is once a host."""

    @property
    def unmatched_share(self) -> float:
        return self.unmatched / self.rows_in if self.rows_in else 0.0

    @property
    def hot_share(self) -> float:
        """Of the rows whose key was found, those that met a hot row."""
        found = self.hot_hits + self.disk_matches
        return self.hot_hits / found if found else 0.0

    def as_dict(self) -> dict[str, Any]:
        shares = {"unmatched_share": self.unmatched_share, "hot_share": self.hot_share}
        return {**asdict(self), "versions": list(self.versions), **shares}


@dataclass(frozen=True, kw_only=True)
class ShedMetrics:
    """What `shed=` did in a batch."""

    strategy: str
    room_rows: int
    """The most rows that are joined in a batch."""
    arrived_rows: int
    """For the first time; those that came back are `returned_rows`."""
    kept_rows: int
    shed_rows: int
    returned_rows: int
    arrived_matches: float
    kept_matches: float
    stated_error: float
    """The largest of its tasks, which bounds that of the batch."""
    error_means: str

    @property
    def kept_share(self) -> float:
        """The sampling rate."""
        return self.kept_rows / self.arrived_rows if self.arrived_rows else 1.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kept_share": self.kept_share}


@dataclass(frozen=True, kw_only=True)
class BatchMetrics:
    """One call of `enrich` in one micro-batch."""

    query_id: str
    query_name: str | None
    observation: str
    """Tells the calls of a query apart."""
    batch_id: int
    started_at: str
    batch_ms: int
    lookups: tuple[LookupMetrics, ...]
    shed: ShedMetrics | None = None
    """None where no rows may be shed."""
    fates: Mapping[str, int] | None = None
    """Rows by fate, every fate that can be; None where late= and shed= ask for none."""

    def as_dict(self) -> dict[str, Any]:
        shed = self.shed.as_dict() if self.shed is not None else None
        return {**asdict(self), "lookups": [lookup.as_dict() for lookup in self.lookups], "shed": shed}


def lookups_of(observed: Mapping[str, Any]) -> tuple[LookupMetrics, ...]:
    """The lookups of an observed call of `enrich`, in their order; none when no task had a row.

    Args:
        observed: What Spark gives: `observation.get` of a batch, or `observedMetrics[name].asDict()` of a stream.
    """
    tasks = [told["lookups"] for told in tasks_told(observed)]
    return tuple(added_up(_of_task(told) for told in lookup) for lookup in zip(*tasks, strict=True))


def shed_of(observed: Mapping[str, Any]) -> ShedMetrics | None:
    """What `shed=` did in an observed call of `enrich`; None where it was not asked for."""
    tasks = [told["shed"] for told in tasks_told(observed) if "shed" in told]
    if not tasks:
        return None
    names = ("arrived_rows", "kept_rows", "shed_rows", "returned_rows", "arrived_matches", "kept_matches")
    sums: dict[str, Any] = {name: sum(task[name] for task in tasks) for name in names}
    return ShedMetrics(
        strategy=tasks[0]["strategy"],
        room_rows=tasks[0]["batch_room_rows"],
        stated_error=max(task["stated_error"] for task in tasks),
        error_means=tasks[0]["error_means"],
        **sums,
    )


def added_up(parts: Iterable[LookupMetrics]) -> LookupMetrics:
    """Several tasks or batches of one lookup as one."""
    parts = list(parts)
    newest = max(parts, key=lambda part: part.versions)
    counts = ("tasks", "rows_in", "hot_hits", "disk_matches", "unmatched", "without_version", "pages_read", "bytes_read")  # fmt: skip
    sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in counts}
    phases = dict.fromkeys(phase for part in parts for phase in part.seconds)
    held = dict.fromkeys(name for part in parts for name in part.held_bytes)
    return LookupMetrics(
        lookup=newest.lookup,
        versions=tuple(sorted({version for part in parts for version in part.versions})),
        master_rows=newest.master_rows,
        master_created_unix_ms=newest.master_created_unix_ms,
        seconds={phase: sum(part.seconds.get(phase, 0.0) for part in parts) for phase in phases},
        held_bytes={name: max(part.held_bytes.get(name, 0) for part in parts) for name in held},
        **sums,
    )


def _of_task(told: dict[str, Any]) -> LookupMetrics:
    return LookupMetrics(versions=(told.pop("version"),), tasks=1, **told)


__all__ = ["BatchMetrics", "LookupMetrics", "ShedMetrics", "added_up", "lookups_of", "shed_of"]
