"""The folder of a parking: its identity, the columns of its rows, and the counts that it tells."""

import uuid
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql.types import StructField, StructType, TimestampType

from tidemill.core.errors import SpecError, StoreError
from tidemill.core.files import write_sealed
from tidemill.spark.late import PARKED_AT_COLUMN
from tidemill.spark.parking_parts import FORMAT, SEGMENTS, read_record, read_segment
from tidemill.spark.parking_releases import RELEASES, read_folded, read_release, release_file

_PLACE = "parking.json"
_MOST_TRIES = 10


@dataclass(frozen=True)
class Place:
    """What `parking.json` says."""

    parking_id: str
    schema: StructType
    """Of parked rows: the stream's columns, then `_parked_at`."""


@dataclass(frozen=True)
class ParkingCounts:
    """Rows of a parking; a row that was parked twice counts twice."""

    parked: int
    """All that were ever parked: those that wait and those that came back."""
    waiting: int
    released: int
    """Came back to be joined."""
    expired: int
    """Those among the released whose deadline had passed."""


def prepare_place(path: Path, stream: StructType) -> Place:
    """The parking at `path`, made if there is none, for rows of this stream."""
    fields = [StructField(f.name, f.dataType) for f in stream if f.name != PARKED_AT_COLUMN]
    schema = StructType([*fields, StructField(PARKED_AT_COLUMN, TimestampType())])
    for name in (SEGMENTS, RELEASES):
        (path / name).mkdir(parents=True, exist_ok=True)
    if not (path / _PLACE).exists():
        return _written(path, Place(uuid.uuid4().hex, schema))
    place = open_place(path)
    today = {field.name: field.dataType for field in schema}
    for field in place.schema:
        if today.get(field.name) != field.dataType:
            raise SpecError(
                f"parked rows in {path} have a column {field.name!r} of type {field.dataType.simpleString()}, "
                f"the stream has {today[field.name].simpleString() if field.name in today else 'none'}",
                code="parked_columns",
                next_move="keep the column until the parking is empty, or give the stream a new parking",
                column=field.name,
            )
    return place if place.schema == schema else _written(path, Place(place.parking_id, schema))


def open_place(path: Path) -> Place:
    if not (path / _PLACE).exists():
        raise StoreError(
            f"no parking at {path}",
            code="no_parking",
            next_move="call tm.with_parked(stream, parking) first: it tells the columns of the rows",
            path=str(path),
        )
    record = read_record(path / _PLACE)
    return Place(record["parking_id"], StructType.fromJson(record["schema"]))


def count_rows(path: Path) -> ParkingCounts:
    """The counts of this moment, read from records alone."""
    for _ in range(_MOST_TRIES):
        try:
            found = _counted(path)
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        else:
            if found is not None:
                return found
    raise StoreError(
        f"records of {path} changed {_MOST_TRIES} times while they were counted",
        code="parking_busy",
        next_move="ask again",
        retryable=True,
    )


def _counted(path: Path) -> ParkingCounts | None:
    """None when a query cleaned up meanwhile."""
    # Segments first: one that is gone later was empty, and one that comes later is not counted at all.
    segments = [read_segment(file) for file in (path / SEGMENTS).glob("*.json")]
    rows = {part.file: part.rows for segment in segments for part in segment.parts}
    folded = read_folded(path / RELEASES)
    taken = sum(count for part, count in (folded.taken or {}).items() if part in rows)
    released, expired, number = folded.released, folded.expired, folded.number + 1
    while release_file(path / RELEASES, number).exists():
        release = read_release(path / RELEASES, number)
        taken += sum(count for part, count in release.taken.items() if part in rows)
        released, expired, number = release.released, release.expired, number + 1
    if read_folded(path / RELEASES).number != folded.number:
        return None
    waiting = sum(rows.values()) - taken
    return ParkingCounts(waiting + released, waiting, released, expired)


def _written(path: Path, place: Place) -> Place:
    record = {"format": FORMAT, "parking_id": place.parking_id, "schema": place.schema.jsonValue()}
    write_sealed(path / _PLACE, record)
    return place


__all__ = ["ParkingCounts", "Place", "count_rows", "open_place", "prepare_place"]
