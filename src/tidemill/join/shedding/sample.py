"""Sample-w: a uniform sample."""

from statistics import NormalDist
from typing import ClassVar

import numpy as np

from tidemill.join.shedding.strategy import CONFIDENCE, Chosen, Floats, Goal, UInt64s, uniform


class Sample:
    """Each row draws a number; those with the highest are kept, so each set of rows is as likely as any other.

    Where each row has one master row, the joined rows are a uniform sample of the join, at a rate that is as high as
    can be: the room, through what arrived. MESHJOIN paper §4.1, Table 2: many-to-one, RANDOM-SAMPLE.

    Good when: sums, counts and means are wanted at once (`estimates.py`). Poor when: a few rows carry most of a sum, or
    have most of the matches.
    """

    name: ClassVar[str] = "sample"
    goal: ClassVar[Goal] = "sample"
    needs_matches: ClassVar[bool] = False
    error_means: ClassVar[str] = "bound on the error of a mean, in standard deviations of its column"

    def ranks(self, matches: Floats, draws: UInt64s, first_row: int) -> Floats:  # noqa: ARG002
        return uniform(draws)

    def shares(self, chosen: Chosen) -> Floats:
        return np.full(chosen.kept_rows, chosen.kept_rows / chosen.arrived_rows)

    def stated_error(self, chosen: Chosen) -> float:
        """That of a sample drawn without putting back, by the normal law."""
        if not chosen.kept_rows:
            return float("inf")
        missing = 1 - chosen.kept_rows / chosen.arrived_rows
        return NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * float(np.sqrt(missing / chosen.kept_rows))


__all__ = ["Sample"]
