"""Segments on their way from disk, and the part of one that is longer than a read."""

from functools import cached_property

import numpy as np

from tidemill.join.parts.kernels import Int64s
from tidemill.master import MasterData
from tidemill.master.protocol import PendingRows, RowsOfPages


class SegmentRead:
    """Some segments that are read together, each of neighbouring pages.

    Args:
        master: Where they are read from.
        segments: Their numbers.
        first_page: Of each.
        pages: Of each.
        begins_segments: False for pages that go on with a segment.
    """

    def __init__(
        self, master: MasterData, segments: Int64s, first_page: Int64s, pages: Int64s, *, begins_segments: bool = True
    ) -> None:
        self.segments = segments
        self.begins_segments = begins_segments
        self.end_page = int(first_page[-1] + pages[-1])
        self.pages = int(pages.sum())
        self._first_page = first_page
        self._ends = np.cumsum(pages)
        self.first_row = np.zeros(len(segments) + 1, dtype=np.int64)
        self._master = master
        self._reading: PendingRows
        if len(segments) == 1:
            self._reading = master.begin_read(int(first_page[0]), self.pages)
        else:
            wanted = np.repeat(first_page - self._ends + pages, pages) + np.arange(self.pages)
            self._reading = master.begin_pages(wanted)

    @cached_property
    def buffer_bytes(self) -> int:
        """Memory that the read takes at most."""
        pages = np.diff(self._ends, prepend=0).tolist()
        runs = zip(self._first_page.tolist(), pages, strict=True)
        return sum(self._master.run_buffer_bytes(*run) for run in runs)

    def first_page(self, number: int) -> int:
        return int(self._first_page[number])

    def arrive(self) -> RowsOfPages:
        """The rows, as soon as they are there; `first_row` says with which each segment begins."""
        rows = self._reading.result()
        self.first_row[1:] = rows.page_start[self._ends]
        return rows


__all__ = ["SegmentRead"]
