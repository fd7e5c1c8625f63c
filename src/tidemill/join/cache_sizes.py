"""How the cache join splits its memory budget."""

from dataclasses import dataclass

from tidemill.core.errors import BudgetError
from tidemill.core.units import format_bytes
from tidemill.join.parts import arrivals, frequency

_LEAST_HOT_BYTES = 1024
_MOST_DISK_BUFFER_BYTES = 4 * 2**20  # 128 pages: more in one step adds waiting, not speed
_MOST_FREQUENCY_BYTES = 8 * 2**20
OUTPUT_WORK_BYTES_PER_ROW = 24


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
        arrival = stream_row_bytes + arrivals.WORK_BYTES_PER_ROW
        page = 2 * max(1, longest_page_bytes)
        # The widest master row is not known, but it fits into the longest page.
        output = arrival + max(master_row_bytes, longest_page_bytes) + OUTPUT_WORK_BYTES_PER_ROW
        least = index_bytes + 3 * arrival + page + output + frequency.LEAST_BYTES + _LEAST_HOT_BYTES
        spare = total_bytes - least
        if spare < 0:
            raise BudgetError(
                f"{format_bytes(total_bytes)} are too little for a cache join on this master data",
                code="budget_too_small",
                next_move=f"give at least {least:,} bytes ({format_bytes(index_bytes)} of them hold the index)",
                total_bytes=total_bytes,
                least_bytes=least,
            )
        disk_buffer = page + min(spare // 4, _MOST_DISK_BUFFER_BYTES)
        sized = {
            "pending_bytes": 2 * arrival + spare // 5,
            "arrivals_bytes": arrival + spare * 2 // 25,
            "disk_buffer_bytes": disk_buffer,
            "frequency_bytes": frequency.LEAST_BYTES + min(spare // 25, _MOST_FREQUENCY_BYTES),
            "index_bytes": max(1, index_bytes),
            "output_bytes": output + spare * 3 // 25,
        }
        hot = total_bytes - sum(sized.values())
        return cls(hot_rows_bytes=hot, pages_per_step=disk_buffer // page, **sized)


__all__ = ["OUTPUT_WORK_BYTES_PER_ROW", "CacheSizes"]
