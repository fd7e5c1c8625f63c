"""Write a new version of a master store: code the keys, sort, cut into pages, index, seal, switch."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.core.errors import InternalError, SpecError
from tidemill.master.groups import CodeCollisionError, KeyCounts, whole_groups
from tidemill.master.history import History
from tidemill.master.history_fold import Folding
from tidemill.master.index import PageIndex
from tidemill.master.key_pages import SCHEMA as KEY_PAGES
from tidemill.master.key_pages import write_key_pages
from tidemill.master.keys import CODE_COLUMN, KeyForm
from tidemill.master.layout import (
    PAGE_ALIGNMENT_BYTES,
    PAGES_FILE,
    Manifest,
    PageFile,
    schema_as_text,
)
from tidemill.master.new_version import NewVersion, new_version, packed_facts
from tidemill.master.order import RANK_COLUMN, OrderBy, rank_groups, ranked
from tidemill.master.packing import Packing
from tidemill.master.page_writer import PageWriter
from tidemill.master.rows import RowLayout
from tidemill.master.sort import ExternalSort
from tidemill.master.source import Source, SourceRows, open_source
from tidemill.master.survey import Survey

Progress = Callable[[int, int], None]

MOST_SEEDS = 64


@dataclass(frozen=True)
class BuildOptions:
    """How a version is written, whatever its rows are."""

    page_bytes: int
    memory_bytes: int
    order_by: OrderBy | None = None
    progress: Progress | None = None
    history: tuple[str, str] | None = None
    """Columns valid-from and valid-to, where rows are versions of their keys."""
    pack: bool | None = None
    """Whether columns are packed; None for: where it is worth it."""

    def __post_init__(self) -> None:
        if self.page_bytes < PAGE_ALIGNMENT_BYTES or self.page_bytes % PAGE_ALIGNMENT_BYTES:
            raise SpecError(
                f"page_bytes is {self.page_bytes}",
                code="page_bytes",
                next_move=f"give a multiple of {PAGE_ALIGNMENT_BYTES}",
                page_bytes=self.page_bytes,
            )
        if self.history is not None and self.order_by is not None:
            raise SpecError(
                "a store with a history keeps its pages in order of key",
                code="history_order",
                next_move="leave out order_by, or history",
            )
        if self.history is not None and self.pack:
            raise SpecError(
                "rows of a store with a history are not packed",
                code="history_packed",
                next_move="leave out pack, or history",
            )

    @property
    def may_pack(self) -> bool:
        return self.history is None and self.pack is not False

    @property
    def passes(self) -> int:
        """How often every row is handled: read, ordered by rank, written."""
        return 2 if self.order_by is None else 3

    def say(self, passes_done: int, rows: int, rows_in_all: int) -> None:
        if self.progress is not None:
            self.progress((passes_done * rows_in_all + rows) // self.passes, rows_in_all)


def build_version(source: Source, *, key: Sequence[str], path: Path, options: BuildOptions) -> int:
    """The number of the version that readers now find as current."""
    rows = open_source(source, key)
    with new_version(path) as version:
        _write_version(rows, version, options)
    return version.number


def _write_version(rows: SourceRows, version: NewVersion, options: BuildOptions) -> None:
    runs = version.folder / "runs"
    runs.mkdir()
    batches, work_schema = rows.batches, rows.schema
    page_schema(rows.schema, rows.form, options)  # a refusal comes before any row is read
    if options.order_by is not None:
        batches = ranked(batches, rows.schema, options.order_by)
        work_schema = work_schema.append(pa.field(RANK_COLUMN, pa.int64()))
    survey = Survey(rows.schema, rows.form.code_column)
    for seed in range(MOST_SEEDS):
        form = replace(rows.form, seed=seed)
        schema = form.told_by(work_schema)
        sort = ExternalSort(runs / str(seed), schema, form.code_column, options.memory_bytes)
        for batch in batches:
            if seed == 0 and options.may_pack:
                survey.add(batch)
            sort.add(coded(batch, form, schema))
            options.say(0, sort.rows, rows.rows_in_all or sort.rows)
        try:
            _write_files(sort, form, rows.schema, survey.packing(wanted=options.pack), version, options)
        except CodeCollisionError:
            batches = sort.unordered()
        else:
            shutil.rmtree(runs)
            return
    raise hash_collides(rows.form)


def hash_collides(form: KeyForm) -> InternalError:
    return InternalError(
        f"{MOST_SEEDS} seeds of the hash all gave one code to two keys of {list(form.columns)}",
        code="hash_collides",
        next_move="report it: a good hash does this in no lifetime",
    )


def coded(batch: pa.RecordBatch, form: KeyForm, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with its codes; those of another seed are replaced."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    if form.is_hashed:
        columns[CODE_COLUMN] = pa.array(form.codes([columns[name] for name in form.columns])[0])
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _write_files(
    sort: ExternalSort,
    form: KeyForm,
    given: pa.Schema,
    packing: Packing,
    version: NewVersion,
    options: BuildOptions,
) -> None:
    aside = version.folder
    schema = page_schema(given, form, options)
    counts = KeyCounts(form)
    write = _in_key_order if options.order_by is None else _in_given_order
    layout = RowLayout.of(schema, first=form.code_column, packing=packing)
    keeps_groups = options.order_by is not None
    writer = PageWriter(aside / PAGES_FILE, layout, options.page_bytes, keeps_groups=keeps_groups)
    with writer:
        key_files = write(sort, writer, counts, form, aside, options)
    files = [writer.finished(version.pages_name)]
    write_manifest(
        aside, form, schema, counts, writer.index(), files, options, writer.most_rows_of_a_page, key_files,
        **packed_facts(packing, writer, aside),
    )  # fmt: skip


def page_schema(given: pa.Schema, form: KeyForm, options: BuildOptions) -> pa.Schema:
    """Of the pages into which rows of the schema `given` go."""
    if options.history is None:
        return form.told_by(given)
    return History.choose(given, form, options.history).page_schema(form)


_KeyFiles = tuple[int, int, int]
"""Bytes of the keys file, bytes and CRC-32C of its blocks file."""


def write_manifest(
    folder: Path,
    form: KeyForm,
    schema: pa.Schema,
    counts: KeyCounts,
    index: PageIndex,
    files: Sequence[PageFile],
    options: BuildOptions,
    most_rows_of_a_page: int,
    key_files: _KeyFiles = (0, 0, 0),
    **packed: Any,
) -> None:
    """Write the index and, last, the manifest of a version whose other files are on disk."""
    index_bytes, index_crc = index.write(folder)
    keys_bytes, blocks_bytes, blocks_crc = key_files
    Manifest(
        key_columns=list(form.columns),
        key_types=[str(kind) for kind in form.types],
        code_kind=form.kind,
        hash_seed=form.seed,
        page_order="key" if options.order_by is None else "given",
        schema_base64=schema_as_text(schema),
        rows=counts.rows,
        distinct_keys=counts.distinct_keys,
        most_rows_of_a_key=counts.most_rows_of_a_key,
        last_code=index.last_code,
        row_bytes=-(-counts.row_bytes // max(counts.rows, 1)),
        page_bytes=options.page_bytes,
        pages=index.pages,
        longest_page_bytes=int(index.blocks.max(initial=0)) * PAGE_ALIGNMENT_BYTES,
        most_rows_of_a_page=most_rows_of_a_page,
        files=list(files),
        index_file_bytes=index_bytes,
        index_file_crc=index_crc,
        keys_file_bytes=keys_bytes,
        blocks_file_bytes=blocks_bytes,
        blocks_file_crc=blocks_crc,
        **packed,
    ).write(folder)


def _in_key_order(
    sort: ExternalSort, writer: PageWriter, counts: KeyCounts, form: KeyForm, _: Path, options: BuildOptions
) -> _KeyFiles:
    batches, folding = sort.in_order(), None
    if options.history is not None:
        folding = Folding(History.choose(sort.schema, form, options.history), form)
        batches = folding.fold(batches)
    for batch in batches:
        counts.add(batch)
        writer.add(batch)
        options.say(1, folding.unfit.rows if folding else counts.rows, sort.rows)
    if folding is not None:
        folding.unfit.refuse()
    return 0, 0, 0


def _in_given_order(
    sort: ExternalSort,
    writer: PageWriter,
    counts: KeyCounts,
    form: KeyForm,
    aside: Path,
    options: BuildOptions,
) -> _KeyFiles:
    """Pages by rank, each key in one of them, and the index that finds it there."""
    by_rank = ExternalSort(
        aside / "runs" / f"rank{form.seed}", sort.schema, RANK_COLUMN, options.memory_bytes
    )
    for batch in whole_groups(sort.in_order(), form):
        counts.add(batch.drop_columns([RANK_COLUMN]))
        by_rank.add(rank_groups(batch, form))
        options.say(1, counts.rows, sort.rows)
    keys = ExternalSort(aside / "runs" / f"keys{form.seed}", KEY_PAGES, "code", options.memory_bytes)
    rows = 0
    for batch in whole_groups(by_rank.in_order(), form):
        codes, pages = writer.add(batch)
        first_of_key = np.append(True, codes[1:] != codes[:-1])
        places = pa.array(pages[first_of_key].astype(np.int32))
        keys.add(pa.RecordBatch.from_arrays([pa.array(codes[first_of_key]), places], schema=KEY_PAGES))
        rows += batch.num_rows
        options.say(2, rows, sort.rows)
    return write_key_pages(aside, keys)


__all__ = [
    "MOST_SEEDS",
    "BuildOptions",
    "Progress",
    "build_version",
    "coded",
    "hash_collides",
    "page_schema",
    "write_manifest",
]
