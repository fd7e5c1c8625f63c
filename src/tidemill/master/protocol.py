"""What joins ask of master data, whether it lies in a store of ours or in a table of a database."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.master.keys import KeyForm
from tidemill.master.layout import PageOrder
from tidemill.master.rows import RowLayout

Int64s = npt.NDArray[np.int64]
UInt8s = npt.NDArray[np.uint8]


class RowsOfPages(Protocol):
    """Neighbouring pages as rows, each in one piece (`master/rows.py`)."""

    @property
    def buffer(self) -> UInt8s:
        """The rows; begins at a multiple of eight bytes."""

    @property
    def codes(self) -> Int64s:
        """Of each row."""

    @property
    def at(self) -> Int64s:
        """Where each row begins in `buffer`."""

    @property
    def page_start(self) -> Int64s:
        """Number of the first row of each page, and of the row after the last page."""


class PendingRows(Protocol):
    """A read that may be under way."""

    def result(self) -> RowsOfPages:
        """The rows, once they are there; errors of the read are raised here."""


class Master(Protocol):
    """One unchanging state of master data: rows in numbered pages, found by 64-bit codes of their keys.

    All that a handle gives comes from the state that it was opened on, whatever others write meanwhile.
    A failed read is an error, never a missing row.
    """

    @property
    def schema(self) -> pa.Schema:
        """Of the pages: the columns, and the codes where the key is not its own code; tells the `KeyForm`."""

    @property
    def layout(self) -> RowLayout:
        """Of the rows that `read_rows` gives, the code first."""

    @property
    def key_form(self) -> KeyForm: ...
    @property
    def key_columns(self) -> tuple[str, ...]:
        """What the user called the key."""

    @property
    def key(self) -> str:
        """The int64 column of codes."""

    @property
    def rows(self) -> int: ...
    @property
    def row_bytes(self) -> int:
        """Of a row on average, as columns."""

    @property
    def stored_row_bytes(self) -> int:
        """Of a row on average, as `layout` has it."""

    @property
    def pages(self) -> int: ...
    @property
    def longest_page_bytes(self) -> int: ...
    @property
    def page_columns_bytes(self) -> int:
        """Of the longest page as columns, at most: they are longer than packed rows."""

    @property
    def page_order(self) -> PageOrder:
        """`key`: codes rise from page to page. `given`: they do not, and a code lies in one page at most."""

    @property
    def index_bytes(self) -> int:
        """Memory that `locate` holds."""

    @property
    def identity(self) -> str:
        """Names the content: different after any change."""

    @property
    def pages_read(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def read_seconds(self) -> float:
        """Seconds that callers waited for pages."""

    def locate(self, keys: Int64s) -> tuple[Int64s, Int64s]:
        """First page and number of pages that can hold each code; 0 pages when none can."""

    def read_page(self, page: int) -> pa.RecordBatch: ...
    def read_pages(self, pages: Sequence[int] | Int64s) -> list[pa.RecordBatch]:
        """Each page by itself, in the order asked for; within a page rows of a key are neighbours."""

    def read_batch(self, pages: Sequence[int] | Int64s) -> pa.RecordBatch:
        """All rows of these pages in the order asked for, in one chunk."""

    def read_paged(self, pages: Sequence[int] | Int64s) -> tuple[pa.RecordBatch, Int64s]:
        """The same, with the number of the first row of each page, and of all rows."""

    def read_rows(self, first_page: int, pages: int) -> RowsOfPages:
        """Neighbouring pages as rows."""

    def begin_read(self, first_page: int, pages: int) -> PendingRows:
        """The same, where the read may go on while the caller works."""

    def begin_pages(self, pages: Int64s) -> PendingRows:
        """Any pages as rows in one buffer, codes ascending within each."""

    def rows_buffer_bytes(self, pages: Sequence[int] | Int64s) -> int:
        """Memory that `begin_pages` takes for these pages."""

    @property
    def first_codes(self) -> Int64s:
        """Code with which each page begins, for pages in order of key."""

    @property
    def continues(self) -> npt.NDArray[np.bool_]:
        """Whether the page before ends with the code with which a page begins."""

    def buffer_bytes(self, pages: Sequence[int] | Int64s) -> int:
        """Memory that `read_pages` takes for these pages."""

    def run_buffer_bytes(self, first_page: int, pages: int) -> int:
        """Memory that `read_rows` takes for these pages."""

    def scan(self, from_page: int = 0) -> Iterator[pa.RecordBatch]:
        """Every page once, from one of them on and around."""

    def lookup(self, keys: Any) -> tuple[Int64s, pa.RecordBatch]:
        """All rows with these keys, and for each row the position of its key in `keys`."""

    def close(self) -> None: ...


__all__ = ["Master", "PendingRows", "RowsOfPages"]
