"""A staging log with its receiver, a source in memory, and an SQLite table with a capture."""

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemill.capture.hooks.sqlite import SqliteCapture
from tidemill.capture.regulator import SourceRegulator
from tidemill.staging import LogReader, StagingLog

TABLE = pa.schema([("id", pa.int64()), ("item", pa.string()), ("price", pa.float64())])
ROWS = pa.schema([("id", pa.int64()), ("item", pa.string())])


class Staging:
    """A log and a receiver that keeps its port over restarts."""

    def __init__(self, folder: Path, schema: pa.Schema = ROWS, max_bytes: int = 2**30) -> None:
        self.log = folder / "log"
        StagingLog.create(self.log, schema, max_bytes=max_bytes).close()
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = folder / "ready.json"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tidemill.staging.receiver", "--log", str(self.log)]
        command += ["--port", str(self._port), "--ready-file", str(self._ready)]
        self._process = subprocess.Popen(command)
        wait_until(self._ready.exists)
        self._port = json.loads(self._ready.read_text())["port"]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def rows(self) -> list[dict[str, Any]]:
        with LogReader(self.log) as reader:
            return [row for _, batch in reader.read(0, reader.head().entries) for row in batch.to_pylist()]

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]


class MemorySource:
    """A source that commits rows 1, 2, 3, ... and can be read by position."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self._lock = threading.Lock()

    def commit(self, count: int, regulator: SourceRegulator | None) -> None:
        with self._lock:
            start = len(self.rows) + 1
            new = [(i, f"item {i}") for i in range(start, start + count)]
            self.rows += new
        if regulator is not None:
            regulator.submit(new)

    def read_after(self, position: int | None, most_rows: int) -> list[tuple[Any, ...]]:
        with self._lock:
            return self.rows[(position or 0) : (position or 0) + most_rows]

    @property
    def ids(self) -> list[int]:
        return [row[0] for row in self.rows]


def regulator_for(staging: Staging, folder: Path, source: MemorySource, **options: Any) -> SourceRegulator:
    regulator = SourceRegulator("shop", ROWS, staging.address, spool_dir=folder / "spool", **options)
    regulator.start(source.read_after, "id")
    return regulator


def capture_of(staging: Staging, folder: Path, **options: Any) -> SqliteCapture:
    """A capture of `shop.db`; the table is made when it is not there."""
    with sqlite3.connect(folder / "shop.db") as plain:
        plain.execute(
            "CREATE TABLE IF NOT EXISTS sales"
            " (id INTEGER PRIMARY KEY, item TEXT CHECK (item <> 'bad'), price REAL DEFAULT 9.5, code UNIQUE)"
        )
    plain.close()
    schema = SqliteCapture.schema_for(TABLE)
    regulator = SourceRegulator("shop", schema, staging.address, spool_dir=folder / "spool", **options)
    return SqliteCapture(regulator, table="sales", schema=TABLE, position="id")


def wait_until(holds: Callable[[], bool]) -> None:
    """Return when it holds; the test's own time limit ends a wait for ever."""
    while not holds():
        time.sleep(0.01)
