"""How `tide` splits a budget."""

from dataclasses import dataclass, field, replace

from tidemill.core.errors import BudgetError
from tidemill.core.units import format_bytes
from tidemill.join.output import OutputPlan
from tidemill.join.parts.arrivals import WORK_BYTES_PER_ROW
from tidemill.join.parts.frequency import LEAST_BYTES as LEAST_SKETCH_BYTES
from tidemill.join.parts.split import START_SHARE, MissCosts
from tidemill.join.parts.waiting_room import REGION_BYTES
from tidemill.master.layout import PAGE_ALIGNMENT_BYTES
from tidemill.master.protocol import Master

PAGES_OF_A_REGION = 16
"""256 KiB of 16 KiB pages: the knee of the measured read times."""
MOST_REGIONS_PER_READ = 6
"""Of whole pages. Reads that keep only what is waited for share that memory by three and find room in it for 48 regions: with 12
they left three quarters of it empty, and 64 bytes were read a row instead of 54 (10 M rows of 24 bytes, Zipf 1, 5 %)."""
_MOST_REGIONS_PER_STEP = 96
_REGIONS_PER_STEP_OF_ONE = 8  # for each of which whole pages would fit
_READS_AHEAD = 1
_LARGE_BYTES = 16 * 2**20
"""Beyond which more is given to what passes through: longer pieces, several of them on their way at a time."""
_MOST_ARRIVALS_BYTES = 10 * 2**19
_MOST_OUTPUT_BYTES = 18 * 2**19
_INDEX_BYTES_OF_A_REGION = REGION_BYTES + 16
RESERVED = ("arrivals", "hot_rows", "sketch", "waiting", "disk_buffer", "index", "output")


@dataclass(frozen=True, kw_only=True)
class TideSizes:
    """Parts of the budget; each is what its reservation may hold at most."""

    arrivals_bytes: int
    hot_rows_bytes: int
    sketch_bytes: int
    waiting_bytes: int
    disk_buffer_bytes: int
    """Pages under way and pages that are being matched."""
    index_bytes: int
    output_bytes: int
    """Matched rows as they are staged, and the columns that they become."""
    region_pages: int
    regions_per_read: int
    reads_per_step: int
    reads_ahead: int
    moves_memory: bool = True
    """Whether hot and waiting rows may share their memory otherwise as the stream goes."""
    miss_costs: MissCosts = field(default_factory=MissCosts)
    """By which they do."""

    def __post_init__(self) -> None:
        if min(self._numbers()) <= 0:
            raise BudgetError(
                f"a tide join cannot work with {self}",
                code="bad_sizes",
                next_move="make each part more than zero",
                sizes=dict(vars(self)),
            )

    def _numbers(self) -> list[int]:
        return [value for name, value in vars(self).items() if name not in ("moves_memory", "miss_costs")]

    @property
    def hot_share(self) -> float:
        """Of hot rows, in what they share with waiting ones."""
        return self.hot_rows_bytes / (self.hot_rows_bytes + self.waiting_bytes)

    def with_hot_share(self, share: float) -> "TideSizes":
        """The same with another share for hot rows; what arrives can still wait."""
        both = self.hot_rows_bytes + self.waiting_bytes
        hot = max(64, min(int(both * share), both - 2 * self.arrivals_bytes))
        return replace(self, hot_rows_bytes=hot, waiting_bytes=both - hot)

    @property
    def pages_per_step(self) -> int:
        return self.pages_per_read * self.reads_per_step

    @property
    def pages_per_read(self) -> int:
        return self.region_pages * self.regions_per_read

    @property
    def total_bytes(self) -> int:
        return sum(getattr(self, f"{part}_bytes") for part in RESERVED)

    @classmethod
    def from_budget(cls, master: Master, plan: OutputPlan, total_bytes: int) -> "TideSizes":
        """The split of `total_bytes` for this master data and stream."""
        return cls.from_numbers(
            total_bytes,
            stream_row_bytes=plan.stream_row_bytes,
            master_row_bytes=max(master.row_bytes, master.longest_page_bytes + master.layout.grows_bytes),
            page_bytes=master.longest_page_bytes,
            page_work_bytes=_page_work_bytes(master) if master.pages else 0,
            pages=master.pages,
            index_bytes=master.index_bytes,
        )

    @classmethod
    def from_numbers(
        cls,
        total_bytes: int,
        *,
        stream_row_bytes: int,
        master_row_bytes: int,
        page_bytes: int,
        page_work_bytes: int,
        pages: int,
        index_bytes: int,
        hot_share: float = START_SHARE,
        region_pages: int | None = None,
        most_regions_per_read: int = MOST_REGIONS_PER_READ,
        moves_memory: bool = True,
        miss_costs: MissCosts | None = None,
    ) -> "TideSizes":
        """The split of `total_bytes`: small parts for what only passes through, the rest for hot and waiting rows.

        Args:
            total_bytes: The budget.
            stream_row_bytes: Expected size of a stream row.
            master_row_bytes: Of a master row on average.
            page_bytes: Of the longest page.
            page_work_bytes: Held beside the rows of a page while it is read, with 4 KiB for its alignment.
            pages: Of the master data.
            index_bytes: Of the store's index.
            hot_share: Of what is left, for hot rows at first.
            region_pages: Of a region; None for 16, or fewer where the budget is small.
            most_regions_per_read: Of one read of whole pages; fewer where the budget is small.
            moves_memory: Whether `hot_share` may change as the stream goes.
            miss_costs: By which it does.
        """
        stream_row = stream_row_bytes + 24
        longest = page_bytes + max(PAGE_ALIGNMENT_BYTES, page_work_bytes)
        output_row = 3 * (stream_row + max(master_row_bytes, page_bytes))
        least = {
            "arrivals": 2 * (stream_row + WORK_BYTES_PER_ROW),
            "hot_rows": 64,
            "sketch": LEAST_SKETCH_BYTES,
            "waiting": 6 * (stream_row + WORK_BYTES_PER_ROW) + 256,  # whatever arrives can wait
            "disk_buffer": 2 * longest,
            "index": index_bytes + pages * _INDEX_BYTES_OF_A_REGION + 64,
            "output": output_row,
        }
        spare = total_bytes - sum(least.values())
        if spare < 0:
            raise _too_little(total_bytes, sum(least.values()))
        # Regions need less index than pages: what is counted too much for the least budget comes back here.
        if region_pages is None:
            region_pages = 1
            while region_pages < PAGES_OF_A_REGION and 12 * region_pages * longest <= spare:
                region_pages *= 2
        regions = -(-pages // region_pages)
        index = index_bytes + regions * _INDEX_BYTES_OF_A_REGION + 64
        spare += least["index"] - index
        region_bytes = region_pages * (longest - PAGE_ALIGNMENT_BYTES) + PAGE_ALIGNMENT_BYTES  # aligned once
        # A read costs as much work as two regions take to read: at small budgets fewer and larger ones are better.
        reads_ahead = _READS_AHEAD if spare > _READS_AHEAD * 32 * region_bytes else 1
        fitting_regions = max(1, spare // (3 * (1 + reads_ahead) * region_bytes))
        regions_per_read = min(most_regions_per_read, fitting_regions)
        regions_per_step = min(_MOST_REGIONS_PER_STEP, _REGIONS_PER_STEP_OF_ONE * fitting_regions)
        beyond = max(0, spare - _LARGE_BYTES)
        parts = {
            "arrivals_bytes": least["arrivals"] + min(spare // 16 + beyond // 7, _MOST_ARRIVALS_BYTES),
            "sketch_bytes": least["sketch"] + spare // 40,
            "disk_buffer_bytes": max(least["disk_buffer"], (1 + reads_ahead) * regions_per_read * region_bytes),
            "output_bytes": least["output"] + min(spare // 8 + beyond // 7, _MOST_OUTPUT_BYTES),
        }  # fmt: skip
        left = total_bytes - index - sum(parts.values())
        if left < least["hot_rows"] + least["waiting"]:  # regions that were asked for are too long
            raise _too_little(total_bytes, total_bytes - left + least["hot_rows"] + least["waiting"])
        hot = max(64, int(left * hot_share))
        return cls(
            index_bytes=index,
            hot_rows_bytes=hot,
            waiting_bytes=left - hot,
            region_pages=region_pages,
            regions_per_read=regions_per_read,
            reads_per_step=max(1, regions_per_step // regions_per_read),
            reads_ahead=reads_ahead,
            moves_memory=moves_memory,
            miss_costs=miss_costs or MissCosts(),
            **parts,
        )


def _page_work_bytes(master: Master) -> int:
    """Held beside a page while it is read, and 4 KiB to align it: they count even where reads need not be aligned."""
    alone, twice = master.rows_buffer_bytes([0]), master.rows_buffer_bytes([0, 0])
    aligns_bytes = 2 * alone - twice
    return alone - master.longest_page_bytes + max(0, PAGE_ALIGNMENT_BYTES - aligns_bytes)


def _too_little(total_bytes: int, least_bytes: int) -> BudgetError:
    return BudgetError(
        f"{format_bytes(total_bytes)} are too little for tide on this master data",
        code="budget_too_small",
        next_move=f"give at least {least_bytes:,} bytes",
        total_bytes=total_bytes,
        least_bytes=least_bytes,
    )


__all__ = ["MOST_REGIONS_PER_READ", "PAGES_OF_A_REGION", "RESERVED", "TideSizes"]
