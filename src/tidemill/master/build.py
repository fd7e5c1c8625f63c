"""Write a new version of a master store: sort, cut into pages, index, seal, switch."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np
import pyarrow as pa

from tidemill.core.errors import SpecError, StoreError
from tidemill.core.files import sync_folder
from tidemill.master.batches import one_batch
from tidemill.master.index import Int64s, PageIndex
from tidemill.master.layout import (
    PAGE_ALIGNMENT_BYTES,
    PAGES_FILE,
    Manifest,
    schema_as_text,
    switch_current,
    version_folder,
    versions_on_disk,
)
from tidemill.master.source import Source, read_source

Progress = Callable[[int, int], None]

_GATHER_ROWS = 262_144  # rows put in key order at a time; keeps the copy small beside the table


def build_version(source: Source, *, key: str, path: Path, page_bytes: int, progress: Progress | None) -> int:
    """The number of the version that readers now find as current."""
    if page_bytes < PAGE_ALIGNMENT_BYTES or page_bytes % PAGE_ALIGNMENT_BYTES:
        raise SpecError(
            f"page_bytes is {page_bytes}",
            code="page_bytes",
            next_move=f"give a multiple of {PAGE_ALIGNMENT_BYTES}",
            page_bytes=page_bytes,
        )
    table, keys = read_source(source, key)
    (path / "versions").mkdir(parents=True, exist_ok=True)
    with _only_builder(path):
        return _write_version(table, keys, key=key, path=path, page_bytes=page_bytes, progress=progress)


def _write_version(
    table: pa.Table, keys: Int64s, *, key: str, path: Path, page_bytes: int, progress: Progress | None
) -> int:
    version = max(versions_on_disk(path), default=0) + 1
    aside = path / "versions" / f".building-{version:06d}"
    # The lock is ours, so whatever lies aside was left by a build that died.
    for left_over in (path / "versions").glob(".building-*"):
        shutil.rmtree(left_over)
    aside.mkdir()
    with (aside / PAGES_FILE).open("wb") as file:
        index, pages_crc, pages_file_bytes = _write_pages(
            file, _in_key_order(table, keys), key, page_bytes, table.num_rows, progress
        )
        file.flush()
        os.fsync(file.fileno())
    index_bytes, index_crc = index.write(aside)
    group_rows = np.unique(keys, return_counts=True)[1]
    Manifest(
        key=key,
        schema_base64=schema_as_text(table.schema),
        rows=table.num_rows,
        distinct_keys=len(group_rows),
        most_rows_of_a_key=int(group_rows.max(initial=0)),
        row_bytes=-(-table.nbytes // max(table.num_rows, 1)),
        page_bytes=page_bytes,
        pages=len(index.offset),
        longest_page_bytes=int(index.length.max(initial=0)),
        pages_file_bytes=pages_file_bytes,
        pages_file_crc=pages_crc,
        index_file_bytes=index_bytes,
        index_file_crc=index_crc,
    ).write(aside)
    aside.rename(version_folder(path, version))
    sync_folder(path / "versions")
    switch_current(path, version)
    return version


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


def _in_key_order(table: pa.Table, keys: Int64s) -> Iterator[pa.RecordBatch]:
    """The table's rows by key, equal keys in their given order, as batches of one chunk."""
    whole = table.combine_chunks()
    if bool(np.all(keys[:-1] <= keys[1:])):
        parts = (whole.slice(at, _GATHER_ROWS) for at in range(0, len(keys), _GATHER_ROWS))
    else:
        order = np.argsort(keys, kind="stable")
        parts = (whole.take(order[at : at + _GATHER_ROWS]) for at in range(0, len(keys), _GATHER_ROWS))
    for part in parts:
        yield one_batch(part.to_batches(), table.schema)


def _write_pages(
    file: BinaryIO,
    batches: Iterator[pa.RecordBatch],
    key: str,
    page_bytes: int,
    rows_in_all: int,
    progress: Progress | None,
) -> tuple[PageIndex, int, int]:
    entries: list[tuple[int, ...]] = []
    offset, file_crc, rows_done = 0, 0, 0
    for batch in batches:
        for page in _cut(batch, page_bytes):
            message = page.serialize()
            stored = message.to_pybytes() + bytes(-message.size % PAGE_ALIGNMENT_BYTES)
            keys = page.column(key)
            entries.append(
                (
                    keys[0].as_py(),
                    keys[-1].as_py(),
                    offset,
                    message.size,
                    page.num_rows,
                    int(google_crc32c.value(message)),
                )
            )
            file.write(stored)
            file_crc = google_crc32c.extend(file_crc, stored)
            offset += len(stored)
        rows_done += batch.num_rows
        if progress is not None:
            progress(rows_done, rows_in_all)
    columns = np.array(entries, dtype=np.int64).reshape(-1, 6).T
    return PageIndex(*(np.ascontiguousarray(column) for column in columns)), file_crc, offset


def _cut(batch: pa.RecordBatch, page_bytes: int) -> Iterator[pa.RecordBatch]:
    """Slices whose stored size is at most `page_bytes`, or one row; the last size guesses the next."""
    at, guess = 0, 64
    while at < batch.num_rows:
        page = batch.slice(at, guess)
        stored_bytes = pa.ipc.get_record_batch_size(page)
        while stored_bytes > page_bytes and page.num_rows > 1:
            page = page.slice(0, max(1, int(page.num_rows * page_bytes / stored_bytes * 0.99)))
            stored_bytes = pa.ipc.get_record_batch_size(page)
        yield page
        at += page.num_rows
        guess = max(1, int(page.num_rows * page_bytes / stored_bytes))


__all__ = ["Progress", "build_version"]
