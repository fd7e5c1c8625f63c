"""Write a new version of a master store: code the keys, sort, cut into pages, index, seal, switch."""

import fcntl
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidemill.core.errors import InternalError, SpecError, StoreError
from tidemill.core.files import sync_folder
from tidemill.master.groups import CodeCollisionError, KeyCounts, whole_groups
from tidemill.master.key_pages import SCHEMA as KEY_PAGES
from tidemill.master.key_pages import write_key_pages
from tidemill.master.keys import CODE_COLUMN, KeyForm
from tidemill.master.layout import (
    PAGE_ALIGNMENT_BYTES,
    PAGES_FILE,
    Manifest,
    schema_as_text,
    switch_current,
    version_folder,
    versions_on_disk,
)
from tidemill.master.order import RANK_COLUMN, OrderBy, rank_groups, ranked
from tidemill.master.page_writer import PageWriter
from tidemill.master.sort import ExternalSort
from tidemill.master.source import Source, SourceRows, open_source

Progress = Callable[[int, int], None]

_MOST_SEEDS = 64


@dataclass(frozen=True)
class BuildOptions:
    """How a version is written, whatever its rows are."""

    page_bytes: int
    memory_bytes: int
    order_by: OrderBy | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.page_bytes < PAGE_ALIGNMENT_BYTES or self.page_bytes % PAGE_ALIGNMENT_BYTES:
            raise SpecError(
                f"page_bytes is {self.page_bytes}",
                code="page_bytes",
                next_move=f"give a multiple of {PAGE_ALIGNMENT_BYTES}",
                page_bytes=self.page_bytes,
            )

    def say(self, rows_done: int, rows_in_all: int) -> None:
        if self.progress is not None:
            self.progress(rows_done, rows_in_all)


def build_version(source: Source, *, key: Sequence[str], path: Path, options: BuildOptions) -> int:
    """The number of the version that readers now find as current."""
    rows = open_source(source, key)
    (path / "versions").mkdir(parents=True, exist_ok=True)
    with _only_builder(path):
        version = max(versions_on_disk(path), default=0) + 1
        aside = path / "versions" / f".building-{version:06d}"
        # The lock is ours, so whatever lies aside was left by a build that died.
        for left_over in (path / "versions").glob(".building-*"):
            shutil.rmtree(left_over)
        aside.mkdir()
        try:
            _write_version(rows, aside, options)
        except BaseException:
            shutil.rmtree(aside)
            raise
        aside.rename(version_folder(path, version))
        sync_folder(path / "versions")
        switch_current(path, version)
        return version


def _write_version(rows: SourceRows, aside: Path, options: BuildOptions) -> None:
    runs = aside / "runs"
    runs.mkdir()
    batches, work_schema = rows.batches, rows.schema
    if options.order_by is not None:
        batches = ranked(batches, rows.schema, options.order_by)
        work_schema = work_schema.append(pa.field(RANK_COLUMN, pa.int64()))
    for seed in range(_MOST_SEEDS):
        form = replace(rows.form, seed=seed)
        coded = form.told_by(work_schema)
        sort = ExternalSort(runs / str(seed), coded, form.code_column, options.memory_bytes)
        for batch in batches:
            sort.add(_coded(batch, form, coded))
        try:
            _write_files(sort, form, form.told_by(rows.schema), aside, options)
        except CodeCollisionError:
            batches = sort.unordered()
        else:
            shutil.rmtree(runs)
            return
    raise InternalError(
        f"{_MOST_SEEDS} seeds of the hash all gave one code to two keys of {list(rows.form.columns)}",
        code="hash_collides",
        next_move="report it: a good hash does this in no lifetime",
    )


def _coded(batch: pa.RecordBatch, form: KeyForm, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with its codes; those of another seed are replaced."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    if form.is_hashed:
        columns[CODE_COLUMN] = pa.array(form.codes([columns[name] for name in form.columns])[0])
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _write_files(
    sort: ExternalSort, form: KeyForm, schema: pa.Schema, aside: Path, options: BuildOptions
) -> None:
    counts = KeyCounts(form)
    write = _in_key_order if options.order_by is None else _in_given_order
    writer = PageWriter(
        aside / PAGES_FILE, schema, form, options.page_bytes, keeps_groups=options.order_by is not None
    )
    with writer:
        keys_bytes, blocks_bytes, blocks_crc = write(sort, writer, counts, form, aside, options)
    index = writer.index()
    index_bytes, index_crc = index.write(aside)
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
        row_bytes=-(-counts.row_bytes // max(counts.rows, 1)),
        page_bytes=options.page_bytes,
        pages=len(index.offset),
        longest_page_bytes=int(index.length.max(initial=0)),
        pages_file_bytes=writer.file_bytes,
        pages_file_crc=writer.file_crc,
        index_file_bytes=index_bytes,
        index_file_crc=index_crc,
        keys_file_bytes=keys_bytes,
        blocks_file_bytes=blocks_bytes,
        blocks_file_crc=blocks_crc,
    ).write(aside)


_KeyFiles = tuple[int, int, int]
"""Bytes of the keys file, bytes and CRC-32C of its blocks file."""


def _in_key_order(
    sort: ExternalSort, writer: PageWriter, counts: KeyCounts, _: KeyForm, __: Path, options: BuildOptions
) -> _KeyFiles:
    for batch in sort.in_order():
        counts.add(batch)
        writer.add(batch)
        options.say(counts.rows, sort.rows)
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
    keys = ExternalSort(aside / "runs" / f"keys{form.seed}", KEY_PAGES, "code", options.memory_bytes)
    rows = 0
    for batch in whole_groups(by_rank.in_order(), form):
        page = writer.pages
        for number, codes in enumerate(writer.add(batch), page):
            distinct = codes[np.append(True, codes[1:] != codes[:-1])]
            pages = pa.array(np.full(len(distinct), number, dtype=np.int32))
            keys.add(pa.RecordBatch.from_arrays([pa.array(distinct), pages], schema=KEY_PAGES))
        rows += batch.num_rows
        options.say(rows, sort.rows)
    return write_key_pages(aside, keys)


@contextmanager
def _only_builder(path: Path) -> Iterator[None]:
    with (path / ".build.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(
                f"another build of {path} is running",
                code="build_running",
                next_move="wait for it, then build again",
                retryable=True,
                path=str(path),
            ) from error
        yield


__all__ = ["BuildOptions", "Progress", "build_version"]
