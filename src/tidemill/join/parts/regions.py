"""Neighbouring master pages that one read brings, and which of them holds a code."""

import numpy as np

from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.leaving_kernels import last_not_after
from tidemill.master.protocol import Master

_SPARSE = 4  # pages a row from which single ones are worth finding
_GAP_PAGES = 2  # one page in between is read along: 16 KiB take 4 µs, one more read among many about 10 µs


class Regions:
    """Cuts the pages of a master store into regions, so that all rows of a code lie in one of them.

    Args:
        master: Pages in order of code, or in a given one in which every code has one page.
        pages: Of a region at most; more only where the rows of one code fill more.
    """

    def __init__(self, master: Master, pages: int) -> None:
        self._master = master
        self.are_in_key_order = master.page_order == "key"
        numbers = np.arange(0, master.pages, pages, dtype=np.int64)
        if self.are_in_key_order and len(numbers):
            # A page that goes on with the code before it does not begin a region: the next one that does not.
            begins = np.flatnonzero(~master.continues)
            numbers = np.unique(begins[np.minimum(np.searchsorted(begins, numbers), len(begins) - 1)])
        self.first_page = np.append(numbers, master.pages)
        # Whether each code lies in one page, so that as many pages as codes will do.
        self._has_single_pages = not self.are_in_key_order or not bool(master.continues.any())
        self.first_code = (
            np.ascontiguousarray(master.first_codes[numbers]) if self.are_in_key_order else numbers
        )

    def __len__(self) -> int:
        return len(self.first_page) - 1

    @property
    def bytes_held(self) -> int:
        return self.first_page.nbytes + self.first_code.nbytes

    def pages_of(self, regions: Int64s) -> tuple[Int64s, Int64s]:
        """Numbers of all pages of some regions, and with which of them each region begins, and the end."""
        pages = self.first_page[regions + 1] - self.first_page[regions]
        return _ranges(self.first_page[regions], pages), np.append(0, np.cumsum(pages))

    def are_dense(self, regions: Int64s, rows: Int64s) -> bool:
        """Whether so many rows wait for them together that single pages are not worth finding."""
        pages = self.first_page[regions + 1] - self.first_page[regions]
        return int(rows.sum()) * _SPARSE >= int(pages.sum())

    def are_sparse_for(self, rows: int, regions: int) -> bool:
        """Whether so few rows wait for so many regions that most of these have a single page to read."""
        return self._has_single_pages and rows * _SPARSE * len(self) < regions * int(self.first_page[-1])

    def most_pages_for(self, regions: Int64s, rows: Int64s) -> Int64s:
        """Pages that must be read at most for each of some regions when so many rows wait for it."""
        pages: Int64s = self.first_page[regions + 1] - self.first_page[regions]
        if not self._has_single_pages:
            return pages
        single = np.minimum(pages, rows + (_GAP_PAGES - 1) * (rows - 1))
        most: Int64s = np.where(rows * _SPARSE >= pages, pages, single)
        return most

    def pages_for(self, regions: Int64s, rows: Int64s, codes: Int64s) -> Int64s:
        """Numbers of the pages that must be read for the codes that wait for some regions.

        Args:
            regions: In the order of the disk.
            rows: How many wait for each of them.
            codes: Of those that wait, region after region.
        """
        pages = self.first_page[regions + 1] - self.first_page[regions]
        is_dense = rows * _SPARSE >= pages
        dense = _ranges(self.first_page[regions[is_dense]], pages[is_dense])
        if is_dense.all():
            return dense
        first, count = self._master.locate(codes[np.repeat(~is_dense, rows)])
        wanted = np.unique(_ranges(first, count))
        # Small gaps are read along; those between regions are left, lest a step read more than it may.
        gap, of_region = np.diff(wanted), np.searchsorted(self.first_page, wanted, side="right")
        filled = np.flatnonzero((gap > 1) & (gap <= _GAP_PAGES) & (np.diff(of_region) == 0))
        along = _ranges(wanted[filled] + 1, gap[filled] - 1)
        return np.sort(np.concatenate([dense, wanted, along]))

    def of(self, codes: Int64s) -> Int64s:
        """The region of each code, or -1 where the index knows that it does not exist."""
        if self.are_in_key_order:
            found = np.empty_like(codes)
            last_not_after(self.first_code, codes, found)
            return found
        page, count = self._master.locate(codes)
        return np.where(count > 0, np.searchsorted(self.first_page, page, side="right") - 1, -1)


def _ranges(first: Int64s, count: Int64s) -> Int64s:
    """first, first + 1, … for each pair, one after the other."""
    before = np.cumsum(count) - count
    return np.repeat(first - before, count) + np.arange(int(count.sum()))


__all__ = ["Regions"]
