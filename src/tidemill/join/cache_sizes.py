"""How the cache join splits its memory budget."""

from dataclasses import dataclass

from tidemill.core.errors import BudgetError
from tidemill.join.parts import frequency
from tidemill.join.parts.needs import Needs

_LEAST_HOT_BYTES = 1024
_MOST_DISK_BUFFER_BYTES = 4 * 2**20  # 128 pages: more in one step adds waiting, not speed
_MOST_FREQUENCY_BYTES = 8 * 2**20


@dataclass(frozen=True)
class CacheSizes:
    """How a budget is split. A part is what its reservation may hold at most.

    >>> sizes = CacheSizes.from_budget(32_000_000, 20, 110, 400_000)
    >>> sizes.total_bytes <= 32_000_000, sizes.pages_per_step, sizes.hot_generation_bytes // 150
    (True, 129, 35930)
    """

    hot_rows_bytes: int
    """Two generations (during a switch both live), candidates, and one column once more."""
    pending_bytes: int
    arrivals_bytes: int
    disk_buffer_bytes: int
    """Pages as read, and once more put together."""
    frequency_bytes: int
    index_bytes: int
    output_bytes: int
    pages_per_step: int
    threshold_matches: int = 1
    """A master row is frequent when it matched more often than this."""
    least_rows_between_switches: int = 2048
    """Stream rows that pass before new hot rows are considered; more when there are many hot rows."""

    def __post_init__(self) -> None:
        parts = {name: value for name, value in vars(self).items() if value <= 0}
        if parts or self.pending_bytes < 2 * self.arrivals_bytes:
            raise BudgetError(
                f"a cache join cannot work with sizes {vars(self)}",
                code="bad_sizes",
                next_move="make each part more than zero and pending at least twice the arrivals",
                sizes=dict(vars(self)),
            )

    @property
    def hot_generation_bytes(self) -> int:
        return self.hot_rows_bytes * 2 // 5

    @property
    def candidate_bytes(self) -> int:
        return self.hot_generation_bytes // 8

    @property
    def total_bytes(self) -> int:
        return (
            self.hot_rows_bytes
            + self.pending_bytes
            + self.arrivals_bytes
            + self.disk_buffer_bytes
            + self.frequency_bytes
            + self.index_bytes
            + self.output_bytes
        )

    @classmethod
    def from_budget(
        cls,
        total_bytes: int,
        stream_row_bytes: int,
        master_row_bytes: int,
        index_bytes: int,
        *,
        longest_page_bytes: int = 16 * 1024,
    ) -> "CacheSizes":
        """Sizes that use the budget; a `BudgetError` names the least that works.

        Each part gets what one row or one page needs, then a share of the rest; hot rows get
        what no other part takes.
        """
        needs = Needs.of(stream_row_bytes, master_row_bytes, index_bytes, longest_page_bytes)
        least_others = frequency.LEAST_BYTES + _LEAST_HOT_BYTES
        spare = needs.spare_bytes("a cache join", total_bytes, least_others, arrival_rows=3)
        arrival, page = needs.arrival_bytes, needs.page_bytes
        disk_buffer = page + min(spare // 4, _MOST_DISK_BUFFER_BYTES)
        sized = {
            "pending_bytes": 2 * arrival + spare // 5,
            "arrivals_bytes": arrival + spare * 2 // 25,
            "disk_buffer_bytes": disk_buffer,
            "frequency_bytes": frequency.LEAST_BYTES + min(spare // 25, _MOST_FREQUENCY_BYTES),
            "index_bytes": needs.index_bytes,
            "output_bytes": needs.output_bytes + spare * 3 // 25,
        }
        hot = total_bytes - sum(sized.values())
        return cls(hot_rows_bytes=hot, pages_per_step=disk_buffer // page, **sized)


__all__ = ["CacheSizes"]
