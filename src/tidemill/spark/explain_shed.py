"""What `shed=` would do in a call of `tm.enrich`: which rows it would keep and why, how many, and in what memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemill.core.units import format_bytes, format_count
from tidemill.join.shedding.catalog import make_strategy
from tidemill.join.shedding.match_counts import KEY_BYTES
from tidemill.join.shedding.shedding import ROW_BYTES
from tidemill.spark.lookup import Lookup
from tidemill.spark.shed import Shed
from tidemill.spark.shed_lane import read_tasks
from tidemill.spark.shed_task import waiting_bytes


@dataclass(frozen=True, kw_only=True)
class ShedExplained:
    """Shedding of one call."""

    path: str
    strategy: str
    goal: str
    why: str
    error_means: str
    """What a report states for a batch that shed rows."""
    capacity_rows: int
    """That a batch joins at most."""
    tasks: int
    task_room_rows: int
    """Its part of the capacity, the largest."""
    memory_bytes: int
    """On a host, of the memory of the call."""
    counts_bytes: int
    """Of it, for master rows by key, at most; once a host."""
    waiting_bytes: int
    """Of it, for rows that wait for the end of their batch; of each worker."""
    waiting_rows: int
    """That find room there, by their expected size; those of a task's room, a quarter more and two batches must."""
    waiting_in_lane_rows: int


def explained_shed(
    shed: Shed, lookups: Sequence[Lookup], *, row_bytes: int, tasks: int, workers: int
) -> ShedExplained:
    """What workers would do; the lane is left as it is.

    Args:
        shed: As given to `enrich`.
        lookups: That rows go through once they are kept.
        row_bytes: Expected size of a row.
        tasks: Among which rows would be dealt in a new lane.
        workers: Of a host.
    """
    choice, counts_bytes, worker_bytes = shed.parts(lookups, workers)
    tasks = read_tasks(shed.path) or tasks
    strategy = make_strategy(choice.strategy)
    waiting = waiting_bytes(worker_bytes)
    return ShedExplained(
        path=str(shed.path),
        strategy=strategy.name,
        goal=strategy.goal,
        why=choice.why,
        error_means=strategy.error_means,
        capacity_rows=shed.rows,
        tasks=tasks,
        task_room_rows=-(-shed.rows // tasks),
        memory_bytes=shed.memory_bytes,
        counts_bytes=min(counts_bytes, KEY_BYTES * lookups[0].master.rows),
        waiting_bytes=waiting,
        waiting_rows=waiting // (row_bytes + ROW_BYTES),
        waiting_in_lane_rows=shed.counts().waiting if (shed.path / "segments").exists() else 0,
    )


def lines_of_shed(told: ShedExplained) -> Iterator[tuple[str, str]]:
    yield "strategy", f"{told.strategy}: {told.why}"
    yield "states", told.error_means
    yield "capacity", f"{format_count(told.capacity_rows)} rows a batch; more are shed into {told.path}"
    yield "room", f"{format_count(told.task_room_rows)} rows for each of {told.tasks} tasks"
    yield "memory", f"{format_bytes(told.memory_bytes)} of the call"
    held = f"{format_bytes(told.waiting_bytes)} for about {format_count(told.waiting_rows)} rows"
    yield "each worker", f"{held} that wait for the end of their batch"
    if told.counts_bytes:
        yield (
            "once a host",
            f"{format_bytes(told.counts_bytes)} for master rows by key, from one scan at the start",
        )
    yield "in the lane", f"{format_count(told.waiting_in_lane_rows)} rows that come back when there is room"


__all__ = ["ShedExplained", "explained_shed", "lines_of_shed"]
