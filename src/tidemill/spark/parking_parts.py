"""Parked rows on disk: a segment for each batch that parked some, made of parts that are whole or count for nothing.

```
path/parking.json                    sealed: format, identity, columns of the rows
path/segments/<query>.<batch>.json   sealed: the parts of one batch; linked into place last, hence once
path/segments/<unique>.arrow         a part: rows of a task in one Arrow batch, never changed
path/releases/                       see parking_releases.py
```
"""

import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.core.errors import StoreError
from tidemill.core.files import read_sealed, sync_folder, write_sealed
from tidemill.spark.late import PARKED_AT_COLUMN

FORMAT = 1
SEGMENTS = "segments"


@dataclass(frozen=True)
class Content:
    """A file of Arrow batches as it was when it was complete."""

    file: str
    rows: int
    bytes: int
    crc: int


@dataclass(frozen=True)
class Part(Content):
    """Rows that one task parked."""

    oldest_parked_us: int
    """Least `_parked_at` of its rows."""


@dataclass(frozen=True)
class Segment:
    """Rows that one batch of one query parked."""

    query_id: str
    batch_id: int
    written_us: int
    looked_in: str | None
    """Identity of the master version that its batch was joined with, in vain for these rows; None when not known."""
    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        return segment_name(self.query_id, self.batch_id)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def segment_name(query_id: str, batch_id: int) -> str:
    return f"{query_id}.{batch_id}.json"


def write_part(folder: Path, batch: pa.RecordBatch) -> Part:
    """The part that these rows are now, safe on disk; a segment must name it, else it counts for nothing."""
    content = write_content(folder, [batch], batch.schema)
    oldest = pc.min(batch.column(PARKED_AT_COLUMN).cast(pa.int64())).as_py()
    return Part(**asdict(content), oldest_parked_us=oldest)


def seal_segment(
    folder: Path, query_id: str, batch_id: int, parts: tuple[Part, ...], *, looked_in: str | None = None
) -> bool:
    """Whether this batch is parked by this call; False when it was before, and the parts are of no use."""
    segment = Segment(query_id, batch_id, time.time_ns() // 1000, looked_in, parts)
    return write_once(folder / segment.name, {"format": FORMAT, **asdict(segment)})


def read_segment(file: Path) -> Segment:
    record = read_record(file)
    parts = tuple(Part(**part) for part in record.pop("parts"))
    return Segment(**record, parts=parts)


def write_content(folder: Path, batches: list[pa.RecordBatch], schema: pa.Schema) -> Content:
    """A new file with these batches under a name of its own, safe on disk."""
    file = folder / f"{uuid.uuid4().hex}.arrow"
    with file.open("wb") as sink:
        with pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        sink.flush()
        os.fsync(sink.fileno())
    sync_folder(folder)
    written = pa.memory_map(str(file)).read_buffer()
    rows = sum(batch.num_rows for batch in batches)
    return Content(file.name, rows, written.size, int(google_crc32c.value(written)))


def read_content(folder: Path, content: Content) -> Iterator[pa.RecordBatch]:
    """The batches of such a file, mapped, after its checksum was found right."""
    file = folder / content.file
    try:
        mapped = pa.memory_map(str(file)).read_buffer()
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(
            f"cannot read the parked rows in {file}: {error}",
            code="unreadable",
            next_move="restore the file from a copy",
            file=str(file),
        ) from error
    if mapped.size != content.bytes or google_crc32c.value(mapped) != content.crc:
        raise StoreError(
            f"{file} differs from what was written ({mapped.size} of {content.bytes} bytes)",
            code="parked_rows_corrupt",
            next_move="restore the file from a copy",
            file=str(file),
        )
    opened = pa.ipc.open_file(mapped)
    return (opened.get_batch(number) for number in range(opened.num_record_batches))


def write_once(path: Path, record: dict[str, Any]) -> bool:
    """Whether `path` holds this record now; False, and nothing changed, when it was there before."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    write_sealed(aside, record)
    try:
        os.link(aside, path)  # an exclusive create that has its content from the first moment
    except FileExistsError:
        return False
    finally:
        aside.unlink()
    sync_folder(path.parent)
    return True


def read_record(file: Path) -> dict[str, Any]:
    """A sealed record of a parking without its format, after a look at that."""
    record = read_sealed(file)
    found = record.pop("format", None)
    if found != FORMAT:
        raise StoreError(
            f"{file} has format {found}, this Tidemill reads {FORMAT}",
            code="format_version",
            next_move="upgrade Tidemill",
            file=str(file),
            found=found,
        )
    return record


def aligned(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows in the schema of today: NULLs in columns that came later."""
    columns: list[pa.Array[Any]] = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


__all__ = [
    "FORMAT",
    "SEGMENTS",
    "Content",
    "Part",
    "Segment",
    "aligned",
    "read_content",
    "read_record",
    "read_segment",
    "seal_segment",
    "segment_name",
    "write_content",
    "write_once",
    "write_part",
]
