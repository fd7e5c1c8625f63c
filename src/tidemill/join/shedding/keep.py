"""Keep-w: the rows that came first."""

from typing import ClassVar

import numpy as np

from tidemill.join.shedding.strategy import Chosen, Floats, Goal, UInt64s


class Keep:
    """Rows are kept as they come until the room is full.

    Where each row gives one result, any choice loses as few as can be: a result for each row beyond the room.
    MESHJOIN paper §4.1, Table 2: many-to-one, MAX-SUBSET.

    Good when: each row has one master row and all that counts is how many are joined now. Poor when: anything is to be
    estimated, since what comes first need not be like the rest.
    """

    name: ClassVar[str] = "keep"
    goal: ClassVar[Goal] = "most"
    needs_matches: ClassVar[bool] = False
    error_means: ClassVar[str] = "share of rows that come later"

    def ranks(self, matches: Floats, draws: UInt64s, first_row: int) -> Floats:  # noqa: ARG002
        return -np.arange(first_row, first_row + len(draws), dtype=np.float64)

    def shares(self, chosen: Chosen) -> None:  # noqa: ARG002
        return None

    def stated_error(self, chosen: Chosen) -> float:
        return 1 - chosen.kept_rows / chosen.arrived_rows


__all__ = ["Keep"]
