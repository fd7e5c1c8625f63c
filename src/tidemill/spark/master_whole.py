"""Files that task attempts wrote become a version: those of the winners are taken, the rest goes."""

import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.core.errors import InternalError, StoreError
from tidemill.master.build import BuildOptions, write_manifest
from tidemill.master.groups import KeyCounts
from tidemill.master.index import PageIndex
from tidemill.master.keys import KeyForm
from tidemill.master.layout import PageFile
from tidemill.master.new_version import NewVersion
from tidemill.spark.master_parts import COUNTS, DONE_SUFFIX, Part


@contextmanager
def attempts_folder(version: NewVersion) -> Iterator[Path]:
    """A folder for what task attempts write; the files left in it at the end go.

    Beside the version and under a name that is never used again: a late attempt, even one of a driver that died, can
    put nothing into the version. A build that dies leaves a folder that the next one removes.
    """
    folder = version.folder.with_name(f"{version.folder.name}-{uuid.uuid4().hex}")
    folder.mkdir()
    try:
        yield folder
    finally:
        # First the name, so that nothing is added while files are removed.
        shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}-gone")), ignore_errors=True)


def finish(
    parts: Sequence[Part],
    attempts: Path,
    version: NewVersion,
    form: KeyForm,
    schema: pa.Schema,
    options: BuildOptions,
) -> None:
    """Take the files of the parts into the version, and write its index and manifest."""
    counts = KeyCounts(form)
    for part in parts:
        for name in COUNTS:
            so_far, more = getattr(counts, name), part.counts[name]
            setattr(counts, name, max(so_far, more) if name.startswith("most") else so_far + more)
    files = [_taken(part.file, attempts, version, number) for number, part in enumerate(parts)]
    most_rows = max((part.most_rows_of_a_page for part in parts), default=0)
    write_manifest(version.folder, form, schema, counts, _whole_index(parts), files, options, most_rows)
    if options.progress is not None:
        options.progress(counts.rows, counts.rows)


def _taken(file: PageFile, attempts: Path, version: NewVersion, number: int) -> PageFile:
    target = version.folder / f"pages-{number:05d}{DONE_SUFFIX}"
    try:
        (attempts / file.name).rename(target)
    except FileNotFoundError as error:
        raise StoreError(
            f"a Spark worker wrote {file.name}, and {attempts} does not have it",
            code="not_shared",
            next_move="give a path on storage that driver and workers share, under the same name",
            path=str(attempts),
        ) from error
    return replace(file, name=f"versions/{version.number:06d}/{target.name}")


def _whole_index(parts: Sequence[Part]) -> PageIndex:
    """The entries of all parts, one after the other; no code may be in two of them."""
    for one, other in pairwise(parts):
        if one.index.last_code >= other.index.first_code[0]:
            raise InternalError(
                f"two tasks had rows from {one.index.last_code} back to {other.index.first_code[0]}",
                code="not_sorted",
                next_move="report it, with the plan of the DataFrame",
            )

    def column(name: str, kind: Any) -> Any:
        return np.concatenate(
            [np.empty(0, kind), *(getattr(part.index, name).astype(kind) for part in parts)]
        )

    return PageIndex.of(
        column("first_code", np.int64),
        column("offset", np.int64),
        np.repeat(np.arange(len(parts)), [part.index.pages for part in parts]),
        column("blocks", np.int64),
        column("continues", np.bool_),
        parts[-1].index.last_code if parts else 0,
    )


__all__ = ["attempts_folder", "finish"]
