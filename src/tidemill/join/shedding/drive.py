"""The loop around a join that is too slow for its stream."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidemill.join.parts.keys import StreamKey
from tidemill.join.protocol import SemiStreamJoin, StepReport
from tidemill.join.shedding.match_counts import MatchCounts
from tidemill.join.shedding.shedding import Shedding
from tidemill.join.shedding.strategy import ShedReport


@dataclass(frozen=True)
class ShedStep:
    """A step of the join, rows that were shed meanwhile, or the end of a round with what became of its rows."""

    step: StepReport
    """Empty where no step was taken."""
    shed: tuple[pa.RecordBatch, ...] = ()
    """To be kept somewhere and joined later."""
    report: ShedReport | None = None
    """Of a round that has ended."""


def drive_shedding(
    join: SemiStreamJoin,
    shedding: Shedding,
    rounds: Iterable[Iterable[pa.RecordBatch]],
    *,
    counts: tuple[MatchCounts, StreamKey] | None = None,
    arrived: Callable[[int], object] | None = None,
) -> Iterator[ShedStep]:
    """Steps until all rows are joined or shed: none waits for a join that is busy.

    Rows beyond the room are what no size of the join could serve: a tuner hears of all that arrive, shed ones too, and
    asks for more memory first. Only where that is refused does the room stay full.

    Args:
        join: Gets what it has room for.
        shedding: Chooses that.
        rounds: The batches that arrive during each step. A round ends when the join takes rows again.
        counts: For strategies that rank by matches, where to look them up and by which key.
        arrived: Told how many rows came, before each step; a tuner resizes the join there.
    """
    most_room = join.room()
    shedding.open(most_room)
    for batches in rounds:
        rows, shed = 0, list[pa.RecordBatch]()
        for batch in batches:
            rows += batch.num_rows
            matches = counts[0].of_rows(batch, counts[1]) if counts is not None else None
            shed += shedding.arrive(batch, matches=matches)
        if shed:
            yield ShedStep(StepReport(), tuple(shed))
        if arrived is not None:
            arrived(rows)
        # A join takes nothing for a while, then much at a time: until then rows wait for what it will take.
        if join.room():
            yield from _handed_over(join, shedding)
            most_room = max(most_room, join.room())
            shedding.open(most_room)
        yield ShedStep(join.step())
    while shedding.waiting_rows and not join.room():
        yield ShedStep(join.step())
    yield from _handed_over(join, shedding)
    yield from (ShedStep(step) for step in join.drain())


def _handed_over(join: SemiStreamJoin, shedding: Shedding) -> Iterator[ShedStep]:
    """The end of a round: as many rows as the join takes now are its, and the others shed."""
    shedding.narrow(join.room())
    done = shedding.hand_over()
    yield ShedStep(StepReport(), done.shed, done.report)
    for batch in done.kept:
        yield from _offered(join, batch)


def _offered(join: SemiStreamJoin, batch: pa.RecordBatch) -> Iterator[ShedStep]:
    """Steps that were needed until the join had taken the batch: rows wider than it expected leave less room."""
    rows = batch.num_rows
    while batch.num_rows:
        rows = min(rows, batch.num_rows)
        piece = batch.slice(0, rows)
        if join.room(-(-piece.nbytes // max(1, rows))) >= rows > 0:
            join.offer(piece)
            batch = batch.slice(rows)
            rows = batch.num_rows
        elif rows > 1:
            rows //= 2
        else:
            yield ShedStep(join.step())
            rows = batch.num_rows


__all__ = ["ShedStep", "drive_shedding"]
