"""Shed rows on their way back: a Spark stream that gives as many as the load leaves room for."""

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidemill.spark.parking_lookup import KeyLookup
from tidemill.spark.parking_lot import Lot
from tidemill.spark.parking_place import open_place
from tidemill.spark.parking_releases import Int32s
from tidemill.spark.parking_source import ParkingStreamReader
from tidemill.spark.shed_lane import read_load


class Lane(Lot):
    """Rows that were shed; the oldest come back first, whenever there is room."""

    def __init__(self, path: Path, schema: pa.Schema, *, room_rows: int, quiet_ms: int) -> None:
        self._path, self._room_rows, self._quiet_ms = path, room_rows, quiet_ms
        # Nothing is looked up: a row waits for room, not for a master row.
        super().__init__(path, schema, KeyLookup(path), on=(), deadline_ms=0)

    def freeze(self) -> None:
        """Take what was shed until now as all that will come back: for a run that ends when it has read what there is."""
        self._frozen_us = None
        self._list_segments()
        self._frozen_us = self._now_us()

    def _due(self, max_rows: int) -> tuple[dict[str, Int32s], int]:
        load = read_load(self._path)
        room = min(
            max_rows, load.room_for_returning(time.time_ns() // 1_000_000, self._quiet_ms, self._room_rows)
        )
        picks: dict[str, Int32s] = {}
        for waiting in sorted(self._waiting.values(), key=lambda w: w.oldest_us):
            if room <= 0:
                break
            picks[waiting.part.file] = waiting.numbers()[:room].astype(np.int32)
            room -= len(picks[waiting.part.file])
        return picks, 0


class ShedDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tidemill-shed"

    def schema(self) -> StructType:
        return open_place(Path(self.options["path"])).schema

    def streamReader(self, schema: StructType) -> "ShedStreamReader":  # noqa: N802 - Spark's name
        return ShedStreamReader(
            Path(self.options["path"]),
            schema,
            max_rows=int(self.options["maxRowsPerBatch"]),
            room_rows=int(self.options["roomRows"]),
            quiet_ms=int(self.options["quietMs"]),
        )


class ShedStreamReader(ParkingStreamReader):
    """Hands out releases as a parking does: each is sealed with its rows before Spark hears of it."""

    def __init__(
        self, path: Path, schema: StructType, *, max_rows: int, room_rows: int, quiet_ms: int
    ) -> None:
        super().__init__(path, path, (), 0, schema, max_rows)
        self._room_rows, self._quiet_ms = room_rows, quiet_ms

    @property
    def lot(self) -> Lot:
        if self._lot is None:
            self._lot = Lane(
                self._path, self._arrow_schema, room_rows=self._room_rows, quiet_ms=self._quiet_ms
            )
        return self._lot


__all__ = ["Lane", "ShedDataSource", "ShedStreamReader"]
