"""What is joined, as far as a prediction needs to know it."""

from dataclasses import dataclass

from tidemill.core.errors import SpecError
from tidemill.master.protocol import Master


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Master data and a stream, in numbers.

    >>> sales = Workload(master_rows=1_000_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=1.0)
    >>> sales.master_pages, sales.rows_per_page
    (7353, 136.0)
    """

    master_rows: int
    master_row_bytes: int
    stream_row_bytes: int
    zipf_exponent: float
    """Of the stream's keys over the master keys; 0 is uniform."""
    matched_share: float = 1.0
    """Stream rows whose key is in the master data."""
    rows_per_key: float = 1.0
    """Master rows that a matched stream row finds."""
    popular_first: bool = False
    """Whether the order of the master data is the order of popularity, as in the X-HYBRIDJOIN paper."""
    page_bytes: int = 16 * 1024
    page_rows: float | None = None
    """Of a page of an open store on average; None for as many as fit by their bytes."""
    index_bytes_per_page: int = 16
    stream_columns: int = 0
    """Of the stream, where known: a join expects a byte more for each."""

    def __post_init__(self) -> None:
        counts = (self.master_rows, self.master_row_bytes, self.stream_row_bytes, self.page_bytes)
        if min(counts) <= 0 or self.zipf_exponent < 0 or not 0 <= self.matched_share <= 1:
            raise SpecError(
                f"nothing can be predicted for {self}",
                code="bad_workload",
                next_move="give positive rows and bytes, a Zipf exponent of 0 or more and a matched share of 0 to 1",
            )

    @classmethod
    def of(
        cls, master: Master, *, stream_row_bytes: int, zipf_exponent: float, matched_share: float = 1.0
    ) -> "Workload":
        """That of open master data."""
        return cls(
            master_rows=master.rows,
            master_row_bytes=master.stored_row_bytes,
            stream_row_bytes=stream_row_bytes,
            zipf_exponent=zipf_exponent,
            matched_share=matched_share,
            page_bytes=master.longest_page_bytes,
            page_rows=master.rows / max(1, master.pages),
        )

    @property
    def expected_stream_row_bytes(self) -> int:
        """What a join splits its memory by."""
        return self.stream_row_bytes + self.stream_columns

    @property
    def rows_per_page(self) -> float:
        return self.page_rows or float(max(1, self.page_bytes // self.master_row_bytes))

    @property
    def master_pages(self) -> int:
        if self.page_rows is not None:
            return max(1, round(self.master_rows / self.page_rows))
        return max(1, -(-self.master_rows // int(self.rows_per_page)))

    @property
    def master_keys(self) -> int:
        return max(1, round(self.master_rows / self.rows_per_key))

    @property
    def output_rows_per_row(self) -> float:
        """Of an inner join: all matches of a stream row."""
        return self.matched_share * self.rows_per_key

    @property
    def master_bytes(self) -> int:
        return self.master_rows * self.master_row_bytes

    @property
    def index_bytes(self) -> int:
        return self.master_pages * self.index_bytes_per_page


__all__ = ["Workload"]
