"""How `moij` splits a budget."""

from dataclasses import dataclass

from tidemill.core.errors import BudgetError
from tidemill.core.units import format_bytes
from tidemill.join.output import OutputPlan
from tidemill.join.paper_sizes import PAPER_SIZES
from tidemill.join.parts.arrivals import WORK_BYTES_PER_ROW
from tidemill.join.parts.shared_rows import LEAST_HOT_BYTES, SEGMENT_BYTES, StreamCells, most_cells_bytes
from tidemill.master import MasterData

_PAPER = PAPER_SIZES["moij"]
_SEGMENT_BYTES = _PAPER.disk_buffer_bytes or 0
_STREAM_BUFFER_BYTES = PAPER_SIZES["hybrid"].stream_buffer_bytes or 0
_READ_SEGMENTS = 8  # read by one hand-over to a thread, which costs 50 µs
_LEAST_SEGMENTS = 6  # of reads of which two are ahead
_READS_AHEAD = 2
_STEP_READS = 8  # matched before output is assembled: Arrow takes 0.2 ms a batch, however small
_DISK_SHARE = 1 / 16
_STREAM_BUFFERS = 16  # of the paper's, with work space five times as large: a piece of few rows costs as much as one of many
_ARRIVALS_PART = 12
_MOST_OUTPUT_BYTES = 8 * 2**20
_ALIGNMENT_BYTES = 4096  # of a buffer for direct reads
_ROW_WORK_BYTES = 16  # code and place of each row of a page
_MATCH_WORK_BYTES = 20  # and of the segment that is being matched: a count, and slots of a hash table
_ROW_OFFSET_BYTES = 4  # of each row in a page
STAGED_SHARE = 0.25
"""Of the output reservation; pairs take half as much, and columns of rounds and of hits the rest."""
_PARTS = ("arrivals", "disk_buffer", "hot_rows", "index", "output", "pending")


@dataclass(frozen=True, kw_only=True)
class MoijSizes:
    """How a budget is split at the start; `hot_rows` and `pending` resize each other afterwards."""

    arrivals_bytes: int
    disk_buffer_bytes: int
    """Segments that are being matched or on their way."""
    hot_rows_bytes: int
    index_bytes: int
    output_bytes: int
    """Matched rows as they are staged, and the columns that they become."""
    pending_bytes: int
    least_pending_bytes: int
    """What hot rows always leave to waiting rows: whatever arrives can wait."""
    segment_pages: int
    """What one waiting row chooses."""
    read_pages: int
    """Of the segments that are read together."""
    reads_ahead: int
    pages_per_step: int
    eviction_rounds: int = _PAPER.eviction_every_rounds or 10

    def __post_init__(self) -> None:
        if any(value <= 0 for value in vars(self).values()) or self.pending_bytes < self.least_pending_bytes:
            raise BudgetError(
                f"a moij join cannot work with {self}",
                code="bad_sizes",
                next_move="make each part more than zero, and pending at least its least",
                sizes=dict(vars(self)),
            )

    @property
    def shared_bytes(self) -> int:
        return self.hot_rows_bytes + self.pending_bytes

    @property
    def total_bytes(self) -> int:
        return sum(getattr(self, f"{part}_bytes") for part in _PARTS)

    @classmethod
    def from_budget(cls, master: MasterData, plan: OutputPlan, total_bytes: int) -> "MoijSizes":
        """Sizes that use the budget; a `BudgetError` names the least that works."""
        stream = StreamCells(plan)
        needs = MoijNeeds(
            stream_row_bytes=plan.stream_row_bytes,
            stream_cell_bytes=stream.cell_bytes,
            least_stream_row_bytes=stream.layout.least_row_bytes,
            master_row_bytes=max(master.row_bytes, master.longest_page_bytes + master.layout.grows_bytes),
            least_master_row_bytes=master.layout.least_row_bytes,
            output_columns=len(plan.output_schema),
            pages=master.pages,
            index_bytes=master.index_bytes,
            longest_page_bytes=master.longest_page_bytes,
        )
        return cls.from_needs(needs, total_bytes)

    @classmethod
    def from_needs(cls, needs: "MoijNeeds", total_bytes: int) -> "MoijSizes":
        """The same from numbers alone."""
        arrival = needs.stream_row_bytes + 24 + WORK_BYTES_PER_ROW
        page = _PageNeeds(needs.longest_page_bytes, needs.least_master_row_bytes)
        widest = max(needs.master_row_bytes, needs.longest_page_bytes)
        least = {
            "arrivals": 2 * arrival,
            "disk_buffer": page.disk_bytes(1, 1, reads=2),
            "hot_rows": LEAST_HOT_BYTES,
            "index": needs.index_bytes + max(1, needs.pages) * SEGMENT_BYTES,
            "output": 3 * (arrival + widest) + 64 * needs.output_columns,
            "pending": needs.cells_bytes(2 * arrival),
        }
        spare = total_bytes - sum(least.values())
        if spare < 0:
            raise BudgetError(
                f"{format_bytes(total_bytes)} are too little for a moij join on this master data",
                code="budget_too_small",
                next_move=f"give at least {sum(least.values()):,} bytes ({format_bytes(least['index'])} of them hold the index)",
                total_bytes=total_bytes,
                least_bytes=sum(least.values()),
            )
        segment_pages, segments, reads_ahead = page.fitting(int(spare * _DISK_SHARE))
        arrivals = least["arrivals"] + min(
            spare // _ARRIVALS_PART,
            _STREAM_BUFFERS * _STREAM_BUFFER_BYTES // needs.stream_row_bytes * arrival,
        )
        parts = {
            "arrivals_bytes": arrivals,
            "disk_buffer_bytes": page.disk_bytes(segment_pages, segments, reads=1 + reads_ahead),
            "hot_rows_bytes": least["hot_rows"] + spare // 28,
            "index_bytes": needs.index_bytes + max(1, -(-needs.pages // segment_pages)) * SEGMENT_BYTES,
            "output_bytes": least["output"] + min(spare * 3 // 25, _MOST_OUTPUT_BYTES),
        }
        return cls(
            **parts,
            pending_bytes=total_bytes - sum(parts.values()),
            least_pending_bytes=needs.cells_bytes(arrivals),
            segment_pages=segment_pages,
            read_pages=segments * segment_pages,
            reads_ahead=reads_ahead,
            pages_per_step=segments * segment_pages * _STEP_READS,
        )


@dataclass(frozen=True, kw_only=True)
class MoijNeeds:
    """What the split of a budget depends on, in numbers."""

    stream_row_bytes: int
    stream_cell_bytes: int
    """Of a row that waits."""
    least_stream_row_bytes: int
    """As it lies in its cell."""
    master_row_bytes: int
    """As columns."""
    least_master_row_bytes: int
    """As it lies in a page."""
    output_columns: int
    pages: int
    index_bytes: int
    longest_page_bytes: int

    def cells_bytes(self, arrow_bytes: int) -> int:
        """Cells for any one row that takes so much as an Arrow batch."""
        return most_cells_bytes(arrow_bytes, self.stream_cell_bytes, self.least_stream_row_bytes)


class _PageNeeds:
    """Memory of pages that are read and matched."""

    def __init__(self, longest_page_bytes: int, least_row_bytes: int) -> None:
        self._page_bytes = max(1, longest_page_bytes)
        # Not known, but no page has more.
        self._rows = self._page_bytes // (least_row_bytes + _ROW_OFFSET_BYTES) + 1

    def disk_bytes(self, segment_pages: int, segments: int, *, reads: int) -> int:
        """For reads of so many segments each, and the work on one of those."""
        segment = segment_pages * (self._page_bytes + self._rows * _ROW_WORK_BYTES) + _ALIGNMENT_BYTES
        return reads * segments * segment + segments * segment_pages * self._rows * _MATCH_WORK_BYTES

    def fitting(self, most_bytes: int) -> tuple[int, int, int]:
        """Pages of a segment, segments of a read, reads ahead: the paper's segment, several of them if they fit."""
        pages = max(1, _SEGMENT_BYTES // self._page_bytes)
        # A read somewhat shorter with two ahead is waited for half as long as one alone.
        several = [(segments, _READS_AHEAD) for segments in range(_READ_SEGMENTS, _LEAST_SEGMENTS - 1, -1)]
        for segments, ahead in (*several, (_READ_SEGMENTS, 1), (2, 1), (1, 1)):
            if self.disk_bytes(pages, segments, reads=1 + ahead) <= most_bytes:
                return pages, segments, ahead
        while pages > 1 and self.disk_bytes(pages, 1, reads=2) > most_bytes:
            pages //= 2
        return pages, 1, 1


__all__ = ["STAGED_SHARE", "MoijNeeds", "MoijSizes"]
