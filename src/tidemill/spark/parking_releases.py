"""Which parked rows come back, and when: decided once, sealed, then told to Spark.

```
path/releases/<number>.json    sealed: one release and how many rows it took from which part
path/releases/<unique>.arrow   its rows, a copy; `_part` and `_row` say where they were
path/releases/taken.json       sealed: the last release that the file named in it covers, and totals until then
path/releases/committed.json   sealed: the last release that Spark is done with
```
A release holds its rows, so reading it again needs nothing else. Releases that Spark is done with are folded: what they
took from parts that still hold rows is kept in one file, and they go.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.files import write_sealed
from tidemill.master.batches import one_batch
from tidemill.spark.parking_parts import (
    FORMAT,
    Content,
    read_content,
    read_record,
    write_content,
    write_once,
)

Int32s = npt.NDArray[np.int32]
Taken = dict[str, Int32s]
"""Row numbers by part."""

RELEASES = "releases"
PART_COLUMN, ROW_COLUMN = "_part", "_row"
ROWS_PER_ARROW_BATCH = 20_000
_TAKEN, _COMMITTED = "taken.json", "committed.json"
_PLACES = [pa.field(PART_COLUMN, pa.int32()), pa.field(ROW_COLUMN, pa.int32())]


@dataclass(frozen=True)
class Release:
    """Rows that came back together."""

    number: int
    content: Content
    taken: dict[str, int]
    """Rows by part, in the order in which `_part` counts them."""
    released: int
    """Rows of all releases up to this one."""
    expired: int
    """Those among them whose deadline had passed."""


@dataclass(frozen=True)
class Folded:
    """All releases up to one, without their rows."""

    number: int = 0
    released: int = 0
    expired: int = 0
    taken: dict[str, int] | None = None
    content: Content | None = None


def release_file(folder: Path, number: int) -> Path:
    return folder / f"{number:012d}.json"


def write_release(
    folder: Path,
    number: int,
    pieces: Mapping[str, tuple[pa.RecordBatch, Int32s]],
    schema: pa.Schema,
    *,
    released: int,
    expired: int,
) -> bool:
    """Whether this release is now the one with this number; False when another was sealed before.

    Args:
        folder: Of releases.
        number: The next one.
        pieces: By part: rows, and their numbers in the part.
        schema: Of the rows.
        released: Rows of all releases before.
        expired: Rows of this and all releases before that came for their deadline.
    """
    whole_schema = pa.schema([*schema, *_PLACES])
    batches = []
    for place, (rows, numbers) in enumerate(pieces.values()):
        columns = [*rows.columns, pa.array(np.full(len(numbers), place, np.int32)), pa.array(numbers)]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=whole_schema))
    whole = one_batch(batches, whole_schema)
    cut = [whole.slice(at, ROWS_PER_ARROW_BATCH) for at in range(0, whole.num_rows, ROWS_PER_ARROW_BATCH)]
    content = write_content(folder, cut, whole_schema)
    taken = {part: len(numbers) for part, (_, numbers) in pieces.items()}
    release = Release(number, content, taken, released + content.rows, expired)
    sealed = write_once(release_file(folder, number), {"format": FORMAT, **asdict(release)})
    if not sealed:
        (folder / content.file).unlink()
    return sealed


def read_release(folder: Path, number: int) -> Release:
    record = read_record(release_file(folder, number))
    return Release(**{**record, "content": Content(**record["content"])})


def taken_by(folder: Path, release: Release) -> Taken:
    """Row numbers that a release took, by part."""
    return _by_part(read_content(folder, release.content), list(release.taken))


def read_folded(folder: Path) -> Folded:
    if not (folder / _TAKEN).exists():
        return Folded()
    record = read_record(folder / _TAKEN)
    return Folded(**{**record, "content": Content(**record["content"])})


def taken_by_folded(folder: Path, folded: Folded) -> Taken:
    if folded.content is None:
        return {}
    return _by_part(read_content(folder, folded.content), list(folded.taken or {}))


def fold(folder: Path, number: int, released: int, expired: int, taken: Taken) -> None:
    """Keep what was taken up to a release in one file, with the totals, so that releases before can go."""
    places = [np.full(len(rows), place, np.int32) for place, rows in enumerate(taken.values())]
    columns = [pa.array(_together(places)), pa.array(_together(taken.values()))]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(_PLACES))
    content = write_content(folder, [batch], batch.schema)
    counts = {part: len(rows) for part, rows in taken.items()}
    folded = Folded(number, released, expired, counts, content)
    before = read_folded(folder).content
    write_sealed(folder / _TAKEN, {"format": FORMAT, **asdict(folded)})
    if before is not None:
        (folder / before.file).unlink(missing_ok=True)


def first_release(folder: Path) -> int:
    """The first one that is on disk; the next one to come when there is none."""
    numbers = [int(file.stem) for file in folder.glob("[0-9]*.json")]
    return min(numbers, default=read_folded(folder).number + 1)


def files_in_use(folder: Path) -> set[str]:
    """Files with rows that a record names."""
    named = {read_release(folder, int(file.stem)).content.file for file in folder.glob("[0-9]*.json")}
    folded = read_folded(folder).content
    return named | {folded.file} if folded is not None else named


def remove_release(folder: Path, number: int) -> None:
    if not release_file(folder, number).exists():
        return
    release = read_release(folder, number)
    release_file(folder, number).unlink(missing_ok=True)
    (folder / release.content.file).unlink(missing_ok=True)


def read_committed(folder: Path) -> int:
    """The last release that Spark is done with."""
    file = folder / _COMMITTED
    return int(read_record(file)["number"]) if file.exists() else 0


def write_committed(folder: Path, number: int) -> None:
    write_sealed(folder / _COMMITTED, {"format": FORMAT, "number": number})


def _by_part(batches: Iterable[pa.RecordBatch], names: list[str]) -> Taken:
    found = [(batch.column(PART_COLUMN).to_numpy(), batch.column(ROW_COLUMN).to_numpy()) for batch in batches]
    places, rows = _together(p for p, _ in found), _together(r for _, r in found)
    order = np.argsort(places, kind="stable")
    cuts = np.searchsorted(places[order], np.arange(1, len(names)))
    return dict(zip(names, np.split(rows[order], cuts), strict=True)) if names else {}


def _together(arrays: Iterable[Int32s]) -> Int32s:
    return np.concatenate([np.empty(0, np.int32), *arrays])


__all__ = [
    "PART_COLUMN",
    "RELEASES",
    "ROW_COLUMN",
    "Folded",
    "Int32s",
    "Release",
    "Taken",
    "files_in_use",
    "first_release",
    "fold",
    "read_committed",
    "read_folded",
    "read_release",
    "release_file",
    "remove_release",
    "taken_by",
    "taken_by_folded",
    "write_committed",
    "write_release",
]
