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
    """A step of the join, and what became of the rows that arrived during the one before."""

    step: StepReport
    shed: tuple[pa.RecordBatch, ...] = ()
    """To be kept somewhere and joined later."""
    report: ShedReport | None = None
    """None while the join drains."""


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
        for batch in done.kept:
            join.offer(batch)
        yield ShedStep(join.step(), (*shed, *done.shed), done.report)
    yield from (ShedStep(step) for step in join.drain())


__all__ = ["ShedStep", "drive_shedding"]
