"""A version comes to be: alone, aside, whole, and only then current."""

import fcntl
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tidemill.core.errors import StoreError
from tidemill.core.files import sync_folder
from tidemill.master.index import PageIndex
from tidemill.master.layout import (
    FORMAT_VERSION,
    PAGE_ALIGNMENT_BYTES,
    PAGES_FILE,
    Manifest,
    PageFile,
    folders_on_disk,
    switch_current,
    version_folder,
)
from tidemill.master.packing import Packing
from tidemill.master.page_writer import PageWriter


@dataclass(frozen=True)
class NewVersion:
    """Where the files of a version are written before it has its place."""

    number: int
    folder: Path

    @property
    def pages_name(self) -> str:
        """Of its own pages file, relative to the store, once the version is in its place."""
        return f"versions/{self.number:06d}/{PAGES_FILE}"


@contextmanager
def new_version(path: Path) -> Iterator[NewVersion]:
    """A version to be written, which is current once the block ends; an error in it leaves the old one."""
    (path / "versions").mkdir(parents=True, exist_ok=True)
    with only_writer(path):
        version = max(folders_on_disk(path), default=0) + 1
        aside = path / "versions" / f".building-{version:06d}"
        # The lock is ours, so whatever lies aside was left by a build that died.
        for left_over in (path / "versions").glob(".building-*"):
            # Workers of a driver that died may still write into a folder of their own, whose name nobody uses again.
            shutil.rmtree(left_over, ignore_errors=left_over != aside)
        aside.mkdir()
        try:
            yield NewVersion(version, aside)
        except BaseException:
            shutil.rmtree(aside)
            raise
        sync_folder(aside)
        aside.rename(version_folder(path, version))
        sync_folder(path / "versions")
        switch_current(path, version)


def packed_facts(packing: Packing, writer: PageWriter, folder: Path) -> dict[str, Any]:
    """What the manifest says of packed columns, once their dictionaries are in the folder of the version."""
    file_bytes, file_crc = packing.write(folder)
    return {
        "packed": packing.form,
        "has_nulls": packing.has_nulls,
        "packed_file_bytes": file_bytes,
        "packed_file_crc": file_crc,
        "stored_row_bytes": -(-writer.row_bytes // max(1, writer.rows)) if not packing.is_plain else 0,
    }


def write_derived(
    version: NewVersion, base: Manifest, index: PageIndex, files: Sequence[PageFile], **facts: Any
) -> None:
    """Write index and manifest of a version that was made from another, after its pages."""
    index_bytes, index_crc = index.write(version.folder)
    replace(
        base,
        pages=index.pages,
        last_code=index.last_code,
        longest_page_bytes=int(index.blocks.max(initial=0)) * PAGE_ALIGNMENT_BYTES,
        files=list(files),
        index_file_bytes=index_bytes,
        index_file_crc=index_crc,
        created_unix_ms=time.time_ns() // 1_000_000,
        format_version=FORMAT_VERSION,
        **facts,
    ).write(version.folder)


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """The lock without which nothing of a store is written or removed; a `StoreError` when another has it."""
    with (path / ".build.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(
                f"another build or change of {path} is running",
                code="build_running",
                next_move="wait for it, then try again",
                retryable=True,
                path=str(path),
            ) from error
        yield


__all__ = ["NewVersion", "new_version", "only_writer", "packed_facts", "write_derived"]
