"""TOPW: the rows with most matches."""

from typing import ClassVar

from tidemill.join.shedding.strategy import Chosen, Floats, Goal, UInt64s


class Top:
    """Rows whose key has most master rows are kept.

    ```
    arrivals ─▶ more matches than the least that is kept? ─yes─▶ in, and that one is shed
                                                          ─no──▶ shed
    ```
    The paper keeps them in a max heap; what must be found and thrown out is the *least* one, so it takes a min-heap
    (repaired). Here the least rank kept is a threshold: a batch is compared with it at once, and what passed is
    cut back to the room when a quarter more has gathered. MESHJOIN paper §4.2; Table 2: many-to-many, MAX-SUBSET.

    Good when: keys have unequal numbers of master rows and popular ones have many. Poor when: every key has
    as many; then it keeps any rows, at the price of knowing the counts (`match_counts.py`).
    """

    name: ClassVar[str] = "top"
    goal: ClassVar[Goal] = "most"
    needs_matches: ClassVar[bool] = True
    error_means: ClassVar[str] = "share of results that come later, by the counts"

    def ranks(self, matches: Floats, draws: UInt64s, first_row: int) -> Floats:  # noqa: ARG002
        return matches

    def shares(self, chosen: Chosen) -> None:  # noqa: ARG002
        return None

    def stated_error(self, chosen: Chosen) -> float:
        kept = float(chosen.kept_matches.sum())
        return 1 - kept / chosen.arrived_matches if chosen.arrived_matches else 0.0


__all__ = ["Top"]
