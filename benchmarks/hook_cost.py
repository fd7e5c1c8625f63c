"""Microseconds that the capture hook adds to a row, on a real SQLite file with a real receiver.

python benchmarks/hook_cost.py [--rows 2000] [--rows-per-commit 10] [--repetitions 7] [--json]

Repetitions with and without the hook alternate, so that a slow moment of the machine hits both alike.
"""

import argparse
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from tidemill.capture.hooks.sqlite import SqliteCapture
from tidemill.capture.regulator import SourceRegulator
from tidemill.staging import StagingLog

SCHEMA = pa.schema(
    [("id", pa.int64()), ("product", pa.int64()), ("price", pa.float64()), ("note", pa.string())]
)
TABLE = "CREATE TABLE sales (id INTEGER PRIMARY KEY, product INTEGER, price REAL, note TEXT)"
INSERT = "INSERT INTO sales (product, price, note) VALUES (?, ?, ?)"


def seconds_to_sell(connection: sqlite3.Connection, rows: int, rows_per_commit: int) -> float:
    begin = time.perf_counter()
    for at in range(0, rows, rows_per_commit):
        for i in range(at, min(at + rows_per_commit, rows)):
            connection.execute(INSERT, (i, i * 0.5, "a note of usual length"))
        connection.commit()
    return time.perf_counter() - begin


def make_database(path: Path) -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(TABLE)
    connection.close()
    return path


def measure(folder: Path, rows: int, rows_per_commit: int, repetitions: int) -> dict[str, float]:
    """Median microseconds a row without and with the hook, and within `submit`."""
    schema = SqliteCapture.schema_for(SCHEMA)
    StagingLog.create(folder / "log", schema).close()
    ready = folder / "ready.json"
    command = [sys.executable, "-m", "tidemill.staging.receiver", "--log", str(folder / "log")]
    receiver = subprocess.Popen([*command, "--ready-file", str(ready)])
    try:
        while not ready.exists():
            time.sleep(0.01)
        address = f"127.0.0.1:{json.loads(ready.read_text())['port']}"
        regulator = SourceRegulator("shop", schema, address, spool_dir=folder / "spool")
        capture = SqliteCapture(regulator, table="sales", schema=SCHEMA, position="id")
        plain = sqlite3.connect(make_database(folder / "plain.db"))
        hooked = capture.connect(make_database(folder / "hooked.db"))
        regulator.flush(30)
        without, with_hook = [], []
        for _ in range(repetitions):
            without.append(seconds_to_sell(plain, rows, rows_per_commit))
            with_hook.append(seconds_to_sell(hooked, rows, rows_per_commit))
            regulator.flush(30)
        stats = regulator.stats()
        hooked.close()
        plain.close()
        capture.close()
    finally:
        receiver.terminate()
        receiver.wait()
    microseconds = 1e6 / rows
    return {
        "without_us_per_row": statistics.median(without) * microseconds,
        "with_us_per_row": statistics.median(with_hook) * microseconds,
        "added_us_per_row": statistics.median(b - a for a, b in zip(without, with_hook, strict=True))
        * microseconds,
        "submit_us_per_row": stats.submit_seconds / stats.rows_submitted * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What the SQLite hook costs the application.")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rows-per-commit", type=int, default=10)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), options.rows, options.rows_per_commit, options.repetitions)
    if options.json:
        print(json.dumps({"rows": options.rows, "rows_per_commit": options.rows_per_commit} | result))
        return
    print(f"{options.rows} rows, {options.rows_per_commit} a commit, median of {options.repetitions}")
    for name, value in result.items():
        print(f"  {name:<20} {value:8.2f}")


if __name__ == "__main__":
    main()
