"""Parked rows that are due, as a Spark stream: its offset is the number of a release that is sealed on disk."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidemill.core.errors import StoreError
from tidemill.core.files import seal, unseal
from tidemill.spark.parking_lookup import KeyLookup
from tidemill.spark.parking_lot import Lot
from tidemill.spark.parking_parts import FORMAT, aligned, read_content
from tidemill.spark.parking_place import open_place
from tidemill.spark.parking_releases import RELEASES, read_committed, read_release, release_file


class ParkingDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tidemill-parking"

    def schema(self) -> StructType:
        return open_place(Path(self.options["path"])).schema

    def streamReader(self, schema: StructType) -> "ParkingStreamReader":  # noqa: N802 - Spark's name
        return ParkingStreamReader(
            path=Path(self.options["path"]),
            master_path=Path(self.options["masterPath"]),
            on=tuple(self.options["on"].split("\n")),
            deadline_ms=int(self.options["deadlineMs"]),
            schema=schema,
            max_rows_per_batch=int(self.options["maxRowsPerBatch"]),
        )


class ParkingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Hands out releases one by one.

    An offset is {format, parking_id, release, crc}. The release behind it was sealed before, with its rows, so a
    batch that is re-run reads the same ones.
    """

    def __init__(
        self,
        path: Path,
        master_path: Path,
        on: tuple[str, ...],
        deadline_ms: int,
        schema: StructType,
        max_rows_per_batch: int,
    ) -> None:
        self._path = path
        self._folder = path / RELEASES
        self._parking_id = open_place(path).parking_id
        self._master_path = master_path
        self._on = on
        self._deadline_ms = deadline_ms
        self._arrow_schema = to_arrow_schema(schema, timezone="UTC")
        self._max_rows = max_rows_per_batch
        self._lot: Lot | None = None

    @property
    def lot(self) -> Lot:
        if self._lot is None:
            lookup = KeyLookup(self._master_path)
            self._lot = Lot(
                self._path, self._arrow_schema, lookup, on=self._on, deadline_ms=self._deadline_ms
            )
        return self._lot

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lot": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._offset(read_committed(self._folder))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.lot.freeze()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        at = self._check(start)
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._max_rows
        return self._offset(self.lot.next_release(at, max_rows))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task an Arrow batch of 20,000 rows."""
        found = []
        for number in range(self._check(start) + 1, self._check(end) + 1):
            if not release_file(self._folder, number).exists():
                raise StoreError(
                    f"release {number} of {self._path} is gone or never was",
                    code="no_such_release",
                    next_move="give the checkpoint the parking it was made with",
                    release=number,
                )
            release = read_release(self._folder, number)
            batches = sum(1 for _ in read_content(self._folder, release.content))
            found += [InputPartition((number, place)) for place in range(batches)]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        number, place = partition.value
        content = read_release(self._folder, number).content
        for at, batch in enumerate(read_content(self._folder, content)):
            if at == place:
                yield aligned(batch, self._arrow_schema)

    def commit(self, end: dict[str, Any]) -> None:
        self.lot.commit(self._check(end))

    def _offset(self, release: int) -> dict[str, Any]:
        return seal({"format": FORMAT, "parking_id": self._parking_id, "release": release})

    def _check(self, offset: dict[str, Any]) -> int:
        """The release of an offset, after making sure that it is whole and of this parking."""
        bare = unseal(offset, "a parking offset in the checkpoint")
        if bare["parking_id"] != self._parking_id:
            raise StoreError(
                f"the checkpoint speaks of parking {bare['parking_id']}, {self._path} is {self._parking_id}",
                code="foreign_parking",
                next_move="give the checkpoint the parking it was made with, or remove the checkpoint",
            )
        return int(bare["release"])


__all__ = ["ParkingDataSource", "ParkingStreamReader"]
