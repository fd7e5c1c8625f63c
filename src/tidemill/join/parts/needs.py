"""The least that one row and one page need, from which every split of a budget starts."""

from dataclasses import dataclass

from tidemill.core.errors import BudgetError
from tidemill.core.units import format_bytes
from tidemill.join.output import OutputPlan
from tidemill.join.paper_sizes import PAPER_SIZES
from tidemill.join.parts import arrivals
from tidemill.master.protocol import Master

OUTPUT_WORK_BYTES_PER_ROW = 24
# Where a paper of the family is silent, HYBRIDJOIN's stream buffer stands in.
_STREAM_BUFFER_BYTES = PAPER_SIZES["hybrid"].stream_buffer_bytes or 50_000
_MOST_OUTPUT_BYTES = 8 * 2**20  # a slice of 60,000 rows: more adds nothing to the speed of gathering


@dataclass(frozen=True)
class Needs:
    """Bytes of one arriving row, one page in the disk buffer, one output row, and the index."""

    arrival_bytes: int
    page_bytes: int
    """As read, and once more put together."""
    output_bytes: int
    index_bytes: int
    stream_buffer_bytes: int
    """The papers' stream buffer with what we hold beside each row in it."""

    @classmethod
    def of(
        cls, stream_row_bytes: int, master_row_bytes: int, index_bytes: int, longest_page_bytes: int
    ) -> "Needs":
        arrival = stream_row_bytes + arrivals.WORK_BYTES_PER_ROW
        # The widest master row is not known, but it fits into the longest page.
        output = arrival + max(master_row_bytes, longest_page_bytes) + OUTPUT_WORK_BYTES_PER_ROW
        stream_buffer = _STREAM_BUFFER_BYTES // max(1, stream_row_bytes) * arrival
        return cls(arrival, 2 * max(1, longest_page_bytes), output, max(1, index_bytes), stream_buffer)

    def spare_bytes(self, join: str, total_bytes: int, other_bytes: int, *, arrival_rows: int) -> int:
        """What is left to share out; a `BudgetError` names the least that works.

        Args:
            join: Name for the message.
            total_bytes: The budget.
            other_bytes: What the join needs beside rows, page, output and index.
            arrival_rows: Rows that must fit, arriving and waiting ones together.
        """
        least = (
            self.index_bytes
            + arrival_rows * self.arrival_bytes
            + self.page_bytes
            + self.output_bytes
            + other_bytes
        )
        if total_bytes < least:
            raise BudgetError(
                f"{format_bytes(total_bytes)} are too little for {join} on this master data",
                code="budget_too_small",
                next_move=f"give at least {least:,} bytes ({format_bytes(self.index_bytes)} of them hold the index)",
                total_bytes=total_bytes,
                least_bytes=least,
            )
        return total_bytes - least

    def buffers(self, spare_bytes: int, most_disk_bytes: int, *, disk_share: float = 0.25) -> dict[str, int]:
        """Arrivals, disk buffer, index and output: small parts of `spare_bytes`, whatever its size.

        Args:
            spare_bytes: Beyond the least that works.
            most_disk_bytes: Pages of one step at most, counted once.
            disk_share: Of `spare_bytes`, for the pages of one step at most.
        """
        disk = self.page_bytes + min(
            int(spare_bytes * disk_share), max(0, 2 * most_disk_bytes - self.page_bytes)
        )
        return {
            "arrivals_bytes": self.arrival_bytes + min(spare_bytes * 2 // 25, self.stream_buffer_bytes),
            "disk_buffer_bytes": disk,
            "index_bytes": self.index_bytes,
            "output_bytes": self.output_bytes + min(spare_bytes * 3 // 25, _MOST_OUTPUT_BYTES),
            "pages_per_step": disk // self.page_bytes,
        }


@dataclass(frozen=True, kw_only=True)
class BufferSizes:
    """Parts that every join on an index has. A part is what its reservation may hold at most."""

    arrivals_bytes: int
    disk_buffer_bytes: int
    """Pages as read, and once more put together."""
    index_bytes: int
    output_bytes: int
    pages_per_step: int

    def __post_init__(self) -> None:
        if any(value <= 0 for value in vars(self).values()):
            raise self.refusal("make each part more than zero")

    @property
    def total_bytes(self) -> int:
        return sum(value for name, value in vars(self).items() if name.endswith("_bytes"))

    def refusal(self, next_move: str) -> BudgetError:
        return BudgetError(
            f"a join cannot work with {self}", code="bad_sizes", next_move=next_move, sizes=dict(vars(self))
        )


@dataclass(frozen=True, kw_only=True)
class WaitingSizes(BufferSizes):
    """Sizes of a join whose rows wait for pages."""

    pending_bytes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pending_bytes < 2 * self.arrivals_bytes:
            raise self.refusal("make pending at least twice the arrivals")


def needs_of(master: Master, plan: OutputPlan) -> dict[str, int]:
    """What `from_budget` of every join on an index asks for, beside the budget."""
    return {
        "stream_row_bytes": plan.stream_row_bytes,
        "master_row_bytes": master.row_bytes,
        "index_bytes": master.index_bytes + master.pages,
        "longest_page_bytes": master.page_columns_bytes,
    }


__all__ = ["OUTPUT_WORK_BYTES_PER_ROW", "BufferSizes", "Needs", "WaitingSizes", "needs_of"]
