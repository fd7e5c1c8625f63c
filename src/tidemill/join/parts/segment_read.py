"""Segments on their way from disk, for the rows that have waited longest."""

from collections import deque

import numpy as np

from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.shared_rows import SharedRows
from tidemill.master import MasterData
from tidemill.master.protocol import PendingRows, RowsOfPages


class SegmentRead:
    """Some segments that are read together, each of neighbouring pages.

    Args:
        master: Where they are read from.
        segments: Their numbers.
        first_page: Of each.
        pages: Of each.
        begins_segment: False for pages that go on with a segment.
    """

    def __init__(
        self,
        master: MasterData,
        segments: Int64s,
        first_page: Int64s,
        pages: Int64s,
        *,
        begins_segment: bool = True,
    ) -> None:
        self.segments = segments
        self.begins_segment = begins_segment
        self.end_page = int(first_page[-1] + pages[-1])
        self.pages = int(pages.sum())
        self.buffer_bytes = 0
        """Memory that the read takes at most."""
        self.first_row = np.zeros(len(segments) + 1, dtype=np.int64)
        """With which each segment begins in what was read, and the number of rows."""
        self._first_page = first_page
        self._ends = np.cumsum(pages)
        self._reading: PendingRows
        if len(segments) == 1:
            self._reading = master.begin_read(int(first_page[0]), self.pages)
            self.buffer_bytes = master.run_buffer_bytes(int(first_page[0]), self.pages)
        else:
            wanted = np.repeat(first_page - self._ends + pages, pages) + np.arange(self.pages)
            self._reading = master.begin_pages(wanted)
            self.buffer_bytes = master.rows_buffer_bytes(wanted)

    def first_page(self, number: int) -> int:
        """Of one of the segments."""
        return int(self._first_page[number])

    def arrive(self) -> RowsOfPages:
        """The rows, as soon as they are there."""
        rows = self._reading.result()
        self.first_row[1:] = rows.page_start[self._ends]
        return rows


class SegmentReads:
    """Reads in the order of the queue: one that is matched, and some ahead of it.

    Rows may join a segment while it is read; only when their key goes on behind the pages that were asked for, more
    reads follow, and those of a segment are all matched before another one's.

    Args:
        master: Where segments are read from.
        read_pages: Of a read at most.
        ahead: Reads under way while one is matched.
    """

    def __init__(self, master: MasterData, read_pages: int, ahead: int) -> None:
        self._master = master
        self._read_pages = read_pages
        self._ahead = ahead
        self._reads: deque[SegmentRead] = deque()

    @property
    def first(self) -> SegmentRead | None:
        return self._reads[0] if self._reads else None

    @property
    def segments(self) -> list[Int64s]:
        return [read.segments for read in self._reads]

    @property
    def buffer_bytes(self) -> int:
        return sum(read.buffer_bytes for read in self._reads)

    def take(self) -> SegmentRead:
        return self._reads.popleft()

    def begin(self, rows: SharedRows, *, is_matching: bool) -> None:
        """Keep reads under way for the segments at the front of the queue."""
        # A table of a database is asked for one run of pages at a time.
        most = self._read_pages // rows.segment_pages if hasattr(self._master, "begin_pages") else 1
        while len(self._reads) + is_matching <= self._ahead:
            chosen = rows.choose(max(1, most), self._read_pages)
            if not len(chosen):
                return
            first = chosen * rows.segment_pages
            pages = np.maximum(rows.segment_pages, rows.reach[chosen])
            pages = np.minimum(np.minimum(pages, self._read_pages), self._master.pages - first)
            self._reads.append(SegmentRead(self._master, chosen, first, pages))

    def go_on(self, rows: SharedRows, segment: Int64s, first_page: int) -> None:
        """Read a segment from one of its pages on, before all others."""
        pages = min(self._end(rows, segment) - first_page, self._read_pages)
        begins = first_page == int(segment[0]) * rows.segment_pages
        where = (np.array([first_page]), np.array([pages]))
        self._reads.appendleft(SegmentRead(self._master, segment, *where, begins_segment=begins))

    def pages_behind(self, rows: SharedRows, read: SegmentRead) -> int:
        """Pages behind those of a read that rows of its segment need."""
        return max(0, self._end(rows, read.segments) - read.end_page) if len(read.segments) == 1 else 0

    def _end(self, rows: SharedRows, segment: Int64s) -> int:
        pages = max(rows.segment_pages, int(rows.reach[segment[0]]))
        return min(int(segment[0]) * rows.segment_pages + pages, self._master.pages)


__all__ = ["SegmentRead", "SegmentReads"]
