"""Cluster sampling: rows kept with chances in proportion to their matches."""

from typing import ClassVar

import numpy as np

from tidemill.join.shedding.estimates import sum_of_clusters
from tidemill.join.shedding.strategy import Chosen, Floats, Goal, UInt64s, uniform


class Cluster:
    """A row is kept with a chance in proportion to the master rows of its key, and all its results with it.

    A row ranks by matches / u with u drawn from 0 … 1, and the highest ranks are kept. Given the highest rank that was
    shed, t, a row with m matches was kept with the chance min(1, m / t), whatever became of the others: sums of
    values / chance have the right mean, and a variance that the kept rows tell (priority sampling: Duffield,
    Lund and Thorup, 2007). The MESHJOIN paper asks for chances by frequency and leaves the draw open (§4.1;
    Table 2: many-to-many, RANDOM-SAMPLE).

    A row without a match counts as one: it gives a result in a left join, and counts that are out of date
    then cost precision, never correctness.

    Good when: the sum grows with the matches. Poor when: what is summed has nothing to do with them.
    """

    name: ClassVar[str] = "cluster"
    goal: ClassVar[Goal] = "sample"
    needs_matches: ClassVar[bool] = True
    error_means: ClassVar[str] = "bound on the error of the number of results, as a share of it"

    def ranks(self, matches: Floats, draws: UInt64s, first_row: int) -> Floats:  # noqa: ARG002
        ranks: Floats = np.maximum(matches, 1.0) / uniform(draws)
        return ranks

    def shares(self, chosen: Chosen) -> Floats:
        shares: Floats = np.minimum(1.0, np.maximum(chosen.kept_matches, 1.0) / chosen.best_shed_rank)
        return shares

    def stated_error(self, chosen: Chosen) -> float:
        results = np.maximum(chosen.kept_matches, 1.0)
        shares = self.shares(chosen)
        if not (
            shares < 1
        ).any():  # a handful of rows that were all certain tell nothing of those that were shed
            return float("inf")
        estimate = sum_of_clusters(results, shares)
        return estimate.error() / estimate.value


__all__ = ["Cluster"]
