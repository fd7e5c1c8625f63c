"""Master data in a table of a database with an index on its key: the same pages, lookups and scans as a store."""

import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.errors import InternalError, SpecError, StoreError
from tidemill.core.units import parse_bytes
from tidemill.master.hashing import hash_bytes, hash_columns
from tidemill.master.keys import KeyForm
from tidemill.master.layout import PageOrder
from tidemill.master.plain import plain
from tidemill.master.protocol import Master
from tidemill.master.rows import RowLayout
from tidemill.master.sql_engine import Engine, only_batch
from tidemill.master.sql_opening import engine_for, surveyed
from tidemill.master.sql_pages import TablePages
from tidemill.master.sql_table import Table

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PageRows:
    """Neighbouring pages as rows in one piece."""

    buffer: npt.NDArray[np.uint8]
    codes: Int64s
    at: Int64s
    page_start: Int64s


@dataclass(frozen=True)
class Reading:
    """A read that happens when its result is asked for: a connection does one thing at a time."""

    master: "MasterTable"
    pages: Int64s

    def result(self) -> PageRows:
        return self.master.rows_of(self.pages)


class MasterTable:
    """A table of a database as it was when the handle was opened.

    Joins use it like a `MasterData`. Pages are ranges of the key, read by one query for neighbours; a key lies
    in one page. The handle holds one transaction open: rows that others change meanwhile are not seen, and it
    cannot leave its process. `key` and `key_form` are those of `MasterData`; single integer keys are in order of
    their codes, for others `page_order` is `given`, and every code with its page is held (12 bytes a key).

    What a read gives is held against what the opening pass counted: too few rows, too many, or others are an
    error. Counters (`pages_read`, `bytes_read`, `read_seconds`) belong to the handle.
    """

    def __init__(self, engine: Engine, table: Table, form: KeyForm, pages: TablePages) -> None:
        self.schema = form.told_by(table.schema)
        self.key_form = form
        self.key_columns = form.columns
        self.key = form.code_column
        self.layout = RowLayout.of(self.schema, first=self.key)
        self.rows = int(pages.rows.sum())
        self.row_bytes = -(-int(pages.bytes.sum()) // max(1, self.rows))
        self.stored_row_bytes = max(self.row_bytes, self.layout.least_row_bytes)
        self.pages = len(pages.rows)
        self.longest_page_bytes = self.page_columns_bytes = int(pages.bytes.max(initial=0))
        self.page_order: PageOrder = "given" if form.is_hashed else "key"
        self.index_bytes = pages.bytes_held
        self.mapped_key_bytes = pages.codes.mapped_bytes if pages.codes else 0
        self.pages_read = 0
        self.bytes_read = 0
        self.read_seconds = 0.0
        self._engine = engine
        self._table = table
        self._index = pages
        self._release = weakref.finalize(self, engine.close)

    @classmethod
    def open(
        cls,
        database: str | Path,
        *,
        table: str,
        key: str | Sequence[str],
        columns: Sequence[str] | None = None,
        page_bytes: str | int = "64 KiB",
        memory: str | int = "64 MB",
    ) -> "MasterTable":
        """A handle on the table as it is now.

        Passes once over the table in order of its key: the database sends keys, and a size and a digest of each
        row, not the rows. Before that it counts NULL keys and values without an exact Arrow form.

        Args:
            database: `postgresql://user@host/name`, or the file of a SQLite or DuckDB database.
            table: Its name, or `schema.name`. An index must begin with the key.
            key: One column or several; several rows may share a key, none may be NULL.
            columns: Those that are read, beside the key; all if None.
            page_bytes: A page ends with the key that reaches it.
            memory: For every code with its page, where keys are not integers; above it they are mapped from a
                temporary file.
        """
        names = (key,) if isinstance(key, str) else tuple(key)
        engine = engine_for(database)
        try:
            described = Table.described(engine, table, names, columns)
            described.refuse_bad_rows()
            form, pages = surveyed(described, parse_bytes(page_bytes), parse_bytes(memory))
        except BaseException:
            engine.close()
            raise
        return cls(engine, described, form, pages)

    def __reduce__(self) -> tuple[Any, ...]:
        raise SpecError(
            f"{self!r} holds a transaction, which cannot leave its process",
            code="table_is_local",
            next_move="open the table where it is read, or build a MasterData from it",
        )

    def __repr__(self) -> str:
        return f"MasterTable({self._engine.name}, {self._table.name!r}, rows={self.rows:,}, key={self.key_columns})"

    @property
    def identity(self) -> str:
        """Names the content: a digest of all rows that were there at the opening, the columns and the page cuts.

        Equal for handles on equal content, also after a restart. The digest is the database's own hash of each
        row, summed: it tells changes, not forgeries, and may differ between versions of a database.
        """
        cuts = int(np.bitwise_xor.reduce(np.cumsum(self._index.rows), initial=0))
        told = pa.array([f"{self.schema.to_string()} {self.pages} {cuts} {self._index.digest}"])
        digest = int(hash_columns([told], 0).view(np.uint64)[0])
        return f"{self._engine.name.lower()}-{self.rows}-{digest:016x}"

    def close(self) -> None:
        """End the transaction and the connection now rather than when the handle is collected."""
        self._release()

    def locate(self, keys: Int64s) -> tuple[Int64s, Int64s]:
        """The page that can hold each code and 1, or 0 and 0 when none can."""
        return self._index.locate(keys)

    def read_page(self, page: int) -> pa.RecordBatch:
        return self.read_batch([page])

    def read_pages(self, pages: Sequence[int] | Int64s) -> list[pa.RecordBatch]:
        """The pages in the order asked for; neighbours come with one query."""
        batch, page_start = self.read_paged(pages)
        return [batch.slice(begin, end - begin) for begin, end in pairwise(page_start.tolist())]

    def read_batch(self, pages: Sequence[int] | Int64s) -> pa.RecordBatch:
        """All rows of the pages in the order asked for; neighbours come with one query."""
        return self.read_paged(pages)[0]

    def read_paged(self, pages: Sequence[int] | Int64s) -> tuple[pa.RecordBatch, Int64s]:
        """Like `read_batch`, with the number of the first row of each page, and of all rows."""
        numbers = np.asarray(pages, dtype=np.int64)
        outside = numbers[(numbers < 0) | (numbers >= self.pages)]
        if len(outside):
            raise InternalError(f"page {outside[0]} of {self!r}, which has {self.pages}", code="no_such_page")
        started = time.perf_counter()
        try:
            page_start = np.append(0, np.cumsum(self._index.rows[numbers]))
            return self._decoded(self._fetched(numbers), numbers, page_start), page_start
        finally:
            self.read_seconds += time.perf_counter() - started

    def read_rows(self, first_page: int, pages: int) -> PageRows:
        """Neighbouring pages as rows in one piece."""
        return self.rows_of(np.arange(first_page, first_page + pages))

    def begin_read(self, first_page: int, pages: int) -> Reading:
        return Reading(self, np.arange(first_page, first_page + pages))

    def begin_pages(self, pages: Int64s) -> Reading:
        return Reading(self, pages)

    def rows_of(self, pages: Int64s) -> PageRows:
        """Pages as rows in one piece, by code within each page."""
        batch, page_start = self.read_paged(pages)
        codes = batch.column(self.key).to_numpy()
        if self.key_form.is_hashed:  # the database has them in the order of the real key
            page = np.repeat(np.arange(len(pages)), np.diff(page_start))
            order = np.lexsort((codes, page))
            batch, codes = batch.take(order), codes[order]
        buffer, at = self.layout.encode(batch)
        return PageRows(buffer, codes, at[:-1], page_start)

    @property
    def first_codes(self) -> Int64s:
        return self._index.first_code

    @property
    def continues(self) -> npt.NDArray[np.bool_]:
        """All False: a key lies in one page."""
        return np.zeros(self.pages, dtype=np.bool_)

    def buffer_bytes(self, pages: Sequence[int] | Int64s) -> int:
        """Memory that `read_pages` takes: as the database sent the rows, and in the types of the pages."""
        return 2 * int(self._index.bytes[np.asarray(pages, dtype=np.int64)].sum())

    def run_buffer_bytes(self, first_page: int, pages: int) -> int:
        """Memory that `read_rows` takes: the same, the rows in one piece, their codes and places."""
        return self.rows_buffer_bytes(np.arange(first_page, first_page + pages))

    def rows_buffer_bytes(self, pages: Sequence[int] | Int64s) -> int:
        """Memory that `begin_pages` takes."""
        numbers = np.asarray(pages, dtype=np.int64)
        return 3 * int(self._index.bytes[numbers].sum()) + 16 * int(self._index.rows[numbers].sum())

    def scan(self, from_page: int = 0) -> Iterator[pa.RecordBatch]:
        """Every page once, from one of them on and around; holds what one query reads."""
        run: list[int] = []
        run_bytes = 0
        for page in (*range(from_page, self.pages), *range(from_page)):
            if run and run_bytes + int(self._index.bytes[page]) > self._engine.query_bytes:
                yield from self.read_pages(run)
                run, run_bytes = [], 0
            run.append(page)
            run_bytes += int(self._index.bytes[page])
        if run:
            yield from self.read_pages(run)

    def lookup(self, keys: Any) -> tuple[Int64s, pa.RecordBatch]:
        """All rows with these keys, and for each row the position of its key in `keys`; one round trip.

        Args:
            keys: An Arrow or NumPy array; of composite keys one array a column, side by side.
        """
        given = keys if isinstance(keys, list | tuple) else [keys]
        columns: list[pa.Array[Any]] = [pa.array(column) for column in given]
        self.key_form.refuse_other_types(self.key_columns, [column.type for column in columns])
        codes, present = self.key_form.codes(columns)
        asked = np.flatnonzero(present)
        found = self._coded(self._looked_up([column.take(asked) for column in columns]))
        stored = found.column(self.key).to_numpy()
        order = np.argsort(stored, kind="stable")
        start = np.searchsorted(stored, codes[asked], side="left", sorter=order)
        matches = np.searchsorted(stored, codes[asked], side="right", sorter=order) - start
        before = np.cumsum(matches) - matches
        position = asked[np.repeat(np.arange(len(asked)), matches)]
        rows = found.take(order[np.repeat(start - before, matches) + np.arange(len(position))])
        if not self.key_form.is_hashed:
            return position, rows
        stored_keys = [rows.column(name) for name in self.key_columns]
        met = np.flatnonzero(self.key_form.same([column.take(position) for column in columns], stored_keys))
        return position[met], rows.take(met).drop_columns([self.key])

    def _looked_up(self, keys: list["pa.Array[Any]"]) -> pa.RecordBatch:
        if not len(keys[0]):
            return pa.RecordBatch.from_arrays(
                [pa.array([], f.type) for f in self._table.schema], schema=self._table.schema
            )
        cast = [plain(column).cast(kind) for column, kind in zip(keys, self.key_form.types, strict=True)]
        # Each real key once: of two that share a code both must be asked for.
        names = list(self.key_columns)
        once = pa.Table.from_arrays(cast, names).group_by(names, use_threads=False).aggregate([])
        (asked,) = once.combine_chunks().to_batches()
        found = self._engine.among(self._table.lookups(), asked, self._table.wire)
        return _exactly(found, self._table)

    def _fetched(self, pages: Int64s) -> pa.RecordBatch:
        if not len(pages):
            return self._looked_up([pa.array([], kind) for kind in self.key_form.types])
        share = np.cumsum(self._index.bytes[pages]) // self._engine.query_bytes
        begins = np.flatnonzero(np.append(True, (np.diff(pages) != 1) | (np.diff(share) != 0)))
        ends = np.append(begins[1:], len(pages)) - 1
        first = self._index.first_key.take(pages[begins])
        last = self._index.last_key.take(pages[ends])
        names = [f"_{number}" for number in range(2 * first.num_columns)]
        bounds = pa.RecordBatch.from_arrays([*first.columns, *last.columns], names)
        found = self._engine.ranges(self._table.ranges(), bounds, self._table.wire)
        return _exactly(found, self._table)

    def _decoded(self, rows: pa.RecordBatch, pages: Int64s, page_start: Int64s) -> pa.RecordBatch:
        """The rows with their codes, when they are those that the pages had at the opening."""
        batch = self._coded(rows)
        wanted = int(page_start[-1])
        is_same = batch.num_rows == wanted
        if is_same:
            codes = batch.column(self.key).to_numpy()
            is_same = bool((codes[page_start[:-1]] == self._index.first_code[pages]).all())
        if not is_same:
            raise StoreError(
                f"{len(pages)} pages of {self!r} have {batch.num_rows} rows, or begin with other keys, where the opening "
                f"pass counted {wanted}",
                code="table_changed",
                next_move="open the table again; if this repeats, rebuild the index on its key",
                rows=batch.num_rows,
                wanted_rows=wanted,
            )
        self.pages_read += len(pages)
        self.bytes_read += int(self._index.bytes[pages].sum())
        return self._in_one_order(batch, page_start[:-1])

    def _in_one_order(self, batch: pa.RecordBatch, page_starts: Int64s) -> pa.RecordBatch:
        """The rows, those of equal keys in an order of their content.

        A database gives them in any order, by plan and place, but a join that was restored counts rows.
        """
        codes = batch.column(self.key).to_numpy()
        is_new = np.append(True, codes[1:] != codes[:-1]) if len(codes) else np.empty(0, dtype=np.bool_)
        is_new[page_starts] = True
        if is_new.all():
            return batch
        tied = np.flatnonzero(~is_new | ~np.append(is_new[1:], True))
        hashes = np.zeros(len(tied), dtype=np.uint64)
        hash_bytes(*self.layout.encode(batch.take(tied)), hashes)
        order = np.arange(batch.num_rows)
        order[tied] = tied[np.lexsort((hashes, np.cumsum(is_new)[tied]))]
        return batch.take(order)

    def _coded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        arrays = list(rows.columns)
        if self.key_form.is_hashed:
            codes, _ = self.key_form.codes([rows.column(name) for name in self.key_columns])
            arrays.append(pa.array(codes))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _exactly(found: pa.Table, table: Table) -> pa.RecordBatch:
    try:
        return only_batch(found, table.schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise StoreError(
            f"a value of {table.name} has no exact Arrow form: {error}",
            code="inexact_values",
            next_move="repair it, or leave its column out by columns=",
        ) from error


if TYPE_CHECKING:
    _IS_A_MASTER: type[Master] = MasterTable

__all__ = ["MasterTable", "PageRows", "Reading"]
