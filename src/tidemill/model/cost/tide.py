"""The cost model of `tide`: hot rows, rows that wait by region, and reads that serve many of them."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import ceil
from typing import ClassVar

from tidemill.core.errors import BudgetError
from tidemill.join.parts.arrivals import WORK_BYTES_PER_ROW
from tidemill.join.parts.picking import MOST_REGIONS
from tidemill.join.parts.row_cache import HOT_ENTRY_BYTES
from tidemill.join.parts.split import MissCosts, Period, Split
from tidemill.join.parts.waiting_room import shift_for
from tidemill.join.tide_sizes import MOST_REGIONS_PER_READ, TideSizes
from tidemill.master.layout import PAGE_ALIGNMENT_BYTES
from tidemill.model.cost.tide_hot import FILLED_SHARE, hit_share, hot_probability
from tidemill.model.cost.tide_reads import RegionRates, rows_per_region_read
from tidemill.model.popularity import Popularity
from tidemill.model.prediction import SteadyState, memory_split
from tidemill.model.work import Work
from tidemill.model.workload import Workload

_PIECE_ROWS = 20_480  # probed together at most
_STRIP_BYTES = 9  # beside the waiting rows of a strip
_FOUND_BYTES = 16  # beside a master row while it is read
_HOT_CHANGES_PER_ROW = 0.016  # a quarter of the hot rows goes, and as many come, every 32 probes of each
_SPARSE_PAGES = 4  # for each row: then single pages are read
_ROUNDS = 4
_MANY_ROWS = 10**9
_REGION_PAGES = (2, 4, 8, 16, 32, 64, 128)
_REGIONS_PER_READ = (1, 4, 12)
_DISKS = (MissCosts(), MissCosts(miss_seconds=2e-6, read_seconds=12.5e-3, bytes_per_s=72e6))


@dataclass(frozen=True, kw_only=True)
class Flow:
    """What becomes of stream rows in the long run, with one split of the memory."""

    entries: float
    """Keys that are hot."""
    hit_share: float
    most_waiting: int
    waiting_rows: float
    """On the lists of regions."""
    under_way: float
    """Taken off the lists, for reads that are under way."""
    regions_per_read: float
    """Chosen together."""
    rows_per_region: float
    """Served when a region is read."""

    @property
    def miss_share(self) -> float:
        return 1 - self.hit_share


class TideModel:
    """Work of `tide` for a stream row: hits cost a lookup, misses their part of a region's read.

    1. *Hot rows.* The keys with the most hits of late are hot (`tide_hot.py`).
    2. *Waiting rows.* The room is full but for what makes the next piece of arrivals fit, and for rows whose reads are
       under way.
    3. *Rows a read.* Regions are read when their oldest row waits longest or most rows wait; with regions alike, twice
       as many leave as wait for one on average (`tide_reads.py`).
    4. *Split.* Memory moves as the rule of the join moves it (`join/parts/split.py`): the model asks that very rule,
       from the start until nothing changes.
    5. *Reads* go on while rows are matched: the slower of the two decides.

    >>> sales = Workload(master_rows=1_000_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=1.0)
    >>> sizes = MODEL.default_sizes(sales, 6_000_000)
    >>> flow = MODEL.flow(sales, sizes)
    >>> round(flow.hit_share, 2), round(flow.rows_per_region), round(2 * flow.waiting_rows / MODEL.regions(sales, sizes))
    (0.59, 333, 333)
    """

    name: ClassVar[str] = "tide"

    def default_sizes(self, workload: Workload, memory_bytes: int) -> TideSizes:
        return self._sizes(workload, memory_bytes)

    def size_grid(self, workload: Workload, memory_bytes: int) -> Iterator[TideSizes]:
        """The default, and other regions, reads and costs by which memory moves."""
        found = [self.default_sizes(workload, memory_bytes)]
        for region_pages, regions, disk in product(_REGION_PAGES, _REGIONS_PER_READ, _DISKS):
            with suppress(BudgetError):
                found.append(
                    self._sizes(
                        workload,
                        memory_bytes,
                        region_pages=region_pages,
                        most_regions_per_read=regions,
                        miss_costs=disk,
                    )
                )
        yield from dict.fromkeys(found)

    def steady_state(self, workload: Workload, sizes: TideSizes) -> SteadyState:
        sizes = self.settled(workload, sizes)
        flow = self.flow(workload, sizes)
        miss = flow.miss_share
        regions = miss / flow.rows_per_region
        pages, reads = self._pages_and_reads(workload, sizes, flow)
        together = flow.regions_per_read * flow.rows_per_region
        piece = _piece_rows(workload, sizes)
        work = Work(
            stream_rows=1.0,
            hot_probes=1.0,
            added=miss,
            master_rows=regions * pages * workload.rows_per_page,
            removed=miss,
            output_rows=workload.matched_share * workload.rows_per_key,
            hot_changes=_HOT_CHANGES_PER_ROW,
            reads=regions * reads,
            read_bytes=regions * pages * workload.page_bytes,
            steps=1 / max(piece, together / max(1e-6, miss)),
        )
        waiting = flow.waiting_rows + flow.under_way
        return SteadyState(
            work_per_row=work,
            hot_bytes=float(sizes.hot_rows_bytes),
            waiting_bytes=waiting * _waiting_row_bytes(workload, sizes, self.regions(workload, sizes)),
            waiting_rows=waiting,
            hit_share=flow.hit_share,
            memory_bytes=memory_split(sizes),
            overlapped=True,
        )

    def settled(self, workload: Workload, sizes: TideSizes) -> TideSizes:
        """The sizes after memory has moved to where the join's rule wants it."""
        if not sizes.moves_memory:
            return sizes
        row_bytes = _stored_row_bytes(workload) + HOT_ENTRY_BYTES
        split = Split(
            sizes.hot_share, keys=workload.master_rows, hot_row_bytes=row_bytes, costs=sizes.miss_costs
        )
        for _ in range(_ROUNDS):
            flow = self.flow(workload, sizes, alike=True)
            pages, _ = self._pages_and_reads(workload, sizes, flow)
            misses = int(_MANY_ROWS * flow.miss_share)
            services = int(misses / flow.rows_per_region)
            split.period = Period(
                rows=_MANY_ROWS, misses=misses, services=services, served_rows=misses,
                bytes_read=int(services * pages * workload.page_bytes),
            )  # fmt: skip
            both_bytes = sizes.hot_rows_bytes + sizes.waiting_bytes
            share = split.look(
                both_bytes=both_bytes, hot_rows=int(flow.entries), most_waiting=flow.most_waiting, counted_rows=0,
                is_hot_full=True,
            )  # fmt: skip
            if share is None:
                break
            split.share = share
            sizes = sizes.with_hot_share(share)
        return sizes

    def flow(self, workload: Workload, sizes: TideSizes, *, alike: bool = False) -> Flow:
        """What becomes of stream rows while the memory is split so; quicker if regions are taken for alike."""
        popularity = _popularity(workload.master_keys, workload.zipf_exponent)
        entries = min(FILLED_SHARE * _most_entries(workload, sizes.hot_rows_bytes), workload.master_keys)
        hits = hit_share(popularity, entries)
        regions = self.regions(workload, sizes)
        most = max(1, int(sizes.waiting_bytes / _waiting_row_bytes(workload, sizes, regions)))
        wanted = min(most / 8, _PIECE_ROWS * (1 - hits))
        free = wanted - min(wanted, (1 - hits) * _piece_rows(workload, sizes)) / 2
        rates = None
        if not alike:
            hot = hot_probability(popularity, entries)
            spread = RegionRates.in_order if workload.popular_first else RegionRates.scattered
            rates = spread(popularity, hot, regions)
        rows, together, under_way, listed = 2 * most / regions, 1.0, 0.0, float(most)
        for _ in range(_ROUNDS):
            together, densest_share, others = _regions_per_read(workload, sizes, rows, regions)
            under_way = min(most / 2, others * together * rows)
            listed = max(1.0, most - free - together * rows / 2 - under_way)
            rows = max(1.0, 2 * listed / regions)
            if rates is not None:
                rows = rows_per_region_read(rates, listed, densest_share=densest_share)
        return Flow(
            entries=entries, hit_share=hits, most_waiting=most, waiting_rows=listed, under_way=under_way,
            regions_per_read=together, rows_per_region=rows,
        )  # fmt: skip

    def regions(self, workload: Workload, sizes: TideSizes) -> int:
        return -(-workload.master_pages // sizes.region_pages)

    def _pages_and_reads(self, workload: Workload, sizes: TideSizes, flow: Flow) -> tuple[float, float]:
        """Of a region when it is read: all pages, or with few rows single ones. Neighbours share a read."""
        all_pages = min(float(sizes.region_pages), workload.master_pages / self.regions(workload, sizes))
        if flow.rows_per_region * _SPARSE_PAGES < all_pages:
            pages = all_pages * (1 - (1 - 1 / all_pages) ** flow.rows_per_region)
            return pages, max(1.0, pages * (1 - pages / all_pages))
        others = max(0.0, flow.regions_per_read - 1) / max(1, self.regions(workload, sizes) - 1)
        return all_pages, max(1e-9, 1 - others)

    def _sizes(
        self,
        workload: Workload,
        memory_bytes: int,
        *,
        region_pages: int | None = None,
        most_regions_per_read: int = MOST_REGIONS_PER_READ,
        miss_costs: MissCosts | None = None,
    ) -> TideSizes:
        return TideSizes.from_numbers(
            memory_bytes,
            stream_row_bytes=workload.expected_stream_row_bytes,
            master_row_bytes=workload.master_row_bytes,
            page_bytes=workload.page_bytes,
            page_work_bytes=ceil(workload.rows_per_page) * _FOUND_BYTES + PAGE_ALIGNMENT_BYTES,
            pages=workload.master_pages,
            index_bytes=workload.index_bytes,
            region_pages=region_pages,
            most_regions_per_read=most_regions_per_read,
            miss_costs=miss_costs,
        )


@cache
def _popularity(keys: int, exponent: float) -> Popularity:
    return Popularity(keys, exponent=exponent)


def _stored_row_bytes(workload: Workload) -> int:
    """Of a master row in one piece, a multiple of eight; of columns, with the bits that rows have."""
    if workload.page_rows is not None:
        # An open store tells the bytes of its rows, and packed ones may have no bits.
        return -(-workload.master_row_bytes // 8) * 8
    return (workload.master_row_bytes // 8 + 1) * 8


def _waiting_row_bytes(workload: Workload, sizes: TideSizes, regions: int) -> float:
    row_bytes = (workload.stream_row_bytes // 8 + 1) * 8
    return row_bytes + _STRIP_BYTES / (1 << shift_for(sizes.waiting_bytes, row_bytes, regions))


def _most_entries(workload: Workload, hot_bytes: int) -> float:
    return hot_bytes / (workload.rows_per_key * _stored_row_bytes(workload) + HOT_ENTRY_BYTES)


def _piece_rows(workload: Workload, sizes: TideSizes) -> float:
    """Rows that are probed together."""
    return min(_PIECE_ROWS, sizes.arrivals_bytes / (workload.stream_row_bytes + WORK_BYTES_PER_ROW))


def _regions_per_read(
    workload: Workload, sizes: TideSizes, rows: float, regions: int
) -> tuple[float, float, float]:
    """Regions chosen together for so many rows each, which share of them for their number, and other reads under way.

    A read that picks what is waited for has room for one region and for those rows (`join/parts/picking.py`); where
    there is not enough memory for that, whole pages are kept of fewer regions.
    """
    found_bytes = sizes.region_pages * workload.rows_per_page * _FOUND_BYTES
    region_bytes = sizes.region_pages * workload.page_bytes
    pick_bytes = sizes.disk_buffer_bytes // 3
    most = min(MOST_REGIONS, sizes.regions_per_read * sizes.reads_per_step // 2)
    most_rows = max(0.0, 0.9 * (pick_bytes - region_bytes - found_bytes) / (_stored_row_bytes(workload) + 8))
    picked = min(float(most), max(1.0, most_rows / rows - 0.5), float(regions))
    may_pick = most > 1 and 2 * (region_bytes + found_bytes) <= pick_bytes
    if may_pick or picked <= sizes.regions_per_read:
        return picked, max(0.0, 1 - most / 2 / picked), 2.0 if may_pick else 1.0
    return float(min(sizes.regions_per_read, regions)), 0.5, float(sizes.reads_ahead)


MODEL = TideModel()

__all__ = ["MODEL", "Flow", "TideModel"]
