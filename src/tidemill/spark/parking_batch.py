"""Rows of a batch on their way into a parking, by the very tasks that send the others on: the batch is computed once.

A task writes parts and tells of them; the driver seals all of them as the batch's segment. Parts that nobody seals count for
nothing, so a task may be retried. A batch that was parked before is not parked again, whatever its tasks find.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidemill.core.errors import SpecError
from tidemill.master.batches import one_batch
from tidemill.spark.late import FATE_COLUMN
from tidemill.spark.parking import Parking, joined_version, seal_parts
from tidemill.spark.parking_parts import SEGMENTS, Part, aligned, read_segment, segment_name, write_part
from tidemill.spark.parking_place import open_place

PART_ROWS = 50_000
"""Rows gathered for one part: each is made safe on disk by itself."""


@dataclass(frozen=True)
class ParkingBatch:
    """One batch at its parking; travels to the tasks."""

    path: Path
    master_path: Path
    schema: pa.Schema
    """Of rows that wait."""
    batch: tuple[str, int]
    """Query and number."""
    is_parked: bool
    """By an earlier run of the batch."""

    @classmethod
    def of(cls, parking: Parking, query_id: str, batch_id: int) -> "ParkingBatch":
        schema = to_arrow_schema(open_place(parking.path).schema, timezone="UTC")
        batch = (query_id, batch_id)
        return cls(parking.path, parking.master_path, schema, batch, _segment(parking.path, batch).exists())

    def seal(self, told: Sequence[Mapping[str, Any]]) -> int:
        """How many rows the batch has parked, durably: those of these parts, or of an earlier run."""
        if self.is_parked:
            return read_segment(_segment(self.path, self.batch)).rows
        parts = tuple(Part(**part) for part in told)
        return seal_parts(
            parts,
            self.path,
            self.batch,
            point="parking",
            looked_in=lambda: joined_version(self.master_path, *self.batch),
        )


@dataclass
class ParkingTask:
    """The rows of one task that wait."""

    place: ParkingBatch
    parts: list[dict[str, Any]] = field(default_factory=list)
    """Written until now, for `seal`."""
    _rows: list[pa.RecordBatch] = field(default_factory=list)

    def others(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that do not wait; those that do are kept for a part."""
        is_parked = pc.equal(batch.column(FATE_COLUMN), pa.scalar("parked"))
        if not pc.any(is_parked).as_py():
            return batch
        if not self.place.is_parked:
            self._rows.append(aligned(batch.filter(is_parked), self.place.schema))
            if sum(rows.num_rows for rows in self._rows) >= PART_ROWS:
                self.write()
        return batch.filter(pc.invert(is_parked))

    def write(self) -> None:
        """Write what was gathered."""
        if self._rows:
            whole = one_batch(self._rows, self.place.schema)
            self._rows.clear()
            self.parts.append(asdict(write_part(self.place.path / SEGMENTS, whole)))


def refuse_other_rows(parking: Parking, rows: StructType) -> None:
    """Stop before the start when rows have no fate, or could not be parked as they are."""
    if FATE_COLUMN not in rows.names:
        raise SpecError(
            f"the rows have no column {FATE_COLUMN!r}, by which parked ones are told",
            code="no_fates",
            next_move='enrich them with late="park", and keep the columns that it adds',
            columns=rows.names,
        )
    kinds = {kind.name: kind.dataType.simpleString() for kind in rows}
    for kept in open_place(parking.path).schema:
        kind, found = kept.dataType.simpleString(), kinds.get(kept.name, "none")
        if kind != found:
            raise SpecError(
                f"rows wait with a column {kept.name!r} of type {kind}, those to deliver have {found}",
                code="parked_columns",
                next_move="keep the columns of the stream as they are until the rows are delivered",
                column=kept.name,
            )


def _segment(path: Path, batch: tuple[str, int]) -> Path:
    return path / SEGMENTS / segment_name(*batch)


__all__ = ["ParkingBatch", "ParkingTask", "refuse_other_rows"]
