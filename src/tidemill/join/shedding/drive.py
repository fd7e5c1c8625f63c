"""The loop around a join that is too slow for its stream."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidemill.join.parts.keys import StreamKey
from tidemill.join.protocol import SemiStreamJoin, StepReport
from tidemill.join.shedding.match_counts import MatchCounts
from tidemill.join.shedding.shedding import Shedding
from tidemill.join.shedding.strategy import ShedReport


@dataclass(frozen=True)
class ShedStep:
    """A step of the join, or the end of a round with what became of its rows."""

    step: StepReport
    """Empty at the end of a round."""
    shed: tuple[pa.RecordBatch, ...] = ()
    """To be kept somewhere and joined later."""
    report: ShedReport | None = None
    """None for a step."""


def drive_shedding(
    join: SemiStreamJoin,
    shedding: Shedding,
    rounds: Iterable[Iterable[pa.RecordBatch]],
    *,
    counts: tuple[MatchCounts, StreamKey] | None = None,
) -> Iterator[ShedStep]:
    """Steps until all rows are joined or shed: none waits for a join that is busy.

    Args:
        join: Gets what it has room for.
        shedding: Chooses that.
        rounds: The batches that arrive during each step.
        counts: For strategies that rank by matches, where to look them up and by which key.
    """
    for batches in rounds:
        shedding.open(join.room())
        shed: list[pa.RecordBatch] = []
        for batch in batches:
            matches = counts[0].of_rows(batch, counts[1]) if counts is not None else None
            shed += shedding.arrive(batch, matches=matches)
        done = shedding.hand_over()
        yield ShedStep(StepReport(), (*shed, *done.shed), done.report)
        for batch in done.kept:
            yield from _offered(join, batch)
        yield ShedStep(join.step())
    yield from (ShedStep(step) for step in join.drain())


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
