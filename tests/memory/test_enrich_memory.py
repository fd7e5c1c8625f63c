"""All workers of a host together stay within the budget of `tm.enrich`, whatever the stream, and share its work."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.master import MasterData
from tidemill.testing.zipf import Zipf

pytestmark = pytest.mark.timeout(280)
CHILD = Path(__file__).with_name("child_enrich.py")
MASTER_ROWS, FILES, ROWS_OF_A_FILE = 1_000_000, 5, 150_000
BUDGET_BYTES = 32_000_000
LARGE_BUDGET_BYTES = 128_000_000
ONE_KEY = 77_777
STREAMS = ("zipf-1", "zipf-1.25", "one-key")


def most_held_bytes(budget_bytes: int) -> float:
    """10 % for what no reservation sees, and a floor for the allocator's own arenas."""
    return budget_bytes * 1.1 + 16 * 2**20


def keys_of(stream: str) -> np.ndarray:
    """Zipf over all keys, or nine rows in ten with the same one."""
    rows = FILES * ROWS_OF_A_FILE
    if stream == "one-key":
        random = np.random.default_rng(6)
        return np.where(random.random(rows) < 0.9, ONE_KEY, random.integers(0, MASTER_ROWS, rows))
    return Zipf(MASTER_ROWS, exponent=float(stream.removeprefix("zipf-")), seed=6, spread=True).draw(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Master data of about 110 MB, and the streams as files, one a batch."""
    place = tmp_path_factory.mktemp("enrich")
    keys = np.arange(MASTER_ROWS)
    names = pa.array(np.char.add("a product with the name ", keys.astype("U10")))
    columns = {f"measure_{n}": keys * n for n in range(8)}
    master = MasterData.build(
        pa.table({"key": keys, "name": names, **columns}), key="key", path=place / "store"
    )
    assert master.rows * master.row_bytes > 3 * BUDGET_BYTES
    for stream in STREAMS:
        (place / stream).mkdir()
        for number, part in enumerate(np.split(keys_of(stream), FILES)):
            rows = pa.table({"id": np.arange(len(part)) + number * ROWS_OF_A_FILE, "key": part})
            pq.write_table(rows, place / stream / f"{number}.parquet")
    return str(place)


@pytest.fixture(scope="module")
def wide(folder: str) -> str:
    """Master data of some 330 MB, which no packing makes smaller."""
    random = np.random.default_rng(3)
    numbers = {f"measure_{n}": random.integers(0, 2**50, MASTER_ROWS) for n in range(40)}
    names = pa.array(["a name"]).take(pa.array(np.zeros(MASTER_ROWS, dtype=np.int64)))
    rows = pa.table({"key": np.arange(MASTER_ROWS), "name": names, **numbers})
    master = MasterData.build(rows, key="key", path=Path(folder) / "wide")
    assert master.rows * master.stored_row_bytes > 2 * LARGE_BUDGET_BYTES
    return "wide"


@pytest.fixture(scope="module")
def second(folder: str) -> str:
    """Another master table for the same keys, about half as large as the first."""
    random = np.random.default_rng(4)
    numbers = {f"measure_{n}": random.integers(0, 2**50, MASTER_ROWS) for n in range(5, 8)}
    names = pa.array(np.char.add("another name ", np.arange(MASTER_ROWS).astype("U10")))
    rows = pa.table({"key": np.arange(MASTER_ROWS), "name": names, **numbers})
    MasterData.build(rows, key="key", path=Path(folder) / "second")
    return "second"


@cache
def measured(folder: str, stream: str, *stores: str, budget_bytes: int = BUDGET_BYTES) -> dict[str, Any]:
    """What a child process found."""
    command = [sys.executable, str(CHILD), folder, stream, str(budget_bytes), *(stores or ("store",))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if ran.returncode:
        raise RuntimeError(ran.stderr[-3000:])
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    print(stream, *stores, found)
    return found


@pytest.mark.parametrize("stream", STREAMS)
def test_all_workers_together_stay_within_the_budget(folder: str, stream: str) -> None:
    found = measured(folder, stream)
    assert found["rows"] == found["known"] == FILES * ROWS_OF_A_FILE
    assert found["hot_hits"] > 0.3 * found["rows"]
    assert found["peak_bytes"] > BUDGET_BYTES / 4, "nothing was measured"
    assert found["peak_bytes"] <= most_held_bytes(BUDGET_BYTES)


def test_joins_with_two_masters_stay_within_their_one_budget(folder: str, second: str) -> None:
    found = measured(folder, "zipf-1", "store", second)
    assert found["rows"] == found["known"] == FILES * ROWS_OF_A_FILE, "both names are known of each row"
    assert found["hot_hits"] > 0.2 * found["rows"]
    assert found["peak_bytes"] > BUDGET_BYTES / 4, "nothing was measured"
    assert found["peak_bytes"] <= most_held_bytes(BUDGET_BYTES)


def test_a_large_budget_is_used_and_kept(folder: str, wide: str) -> None:
    found = measured(folder, "zipf-1", wide, budget_bytes=LARGE_BUDGET_BYTES)
    assert found["rows"] == found["known"] == FILES * ROWS_OF_A_FILE
    assert found["hot_hits"] > 0.3 * found["rows"]
    assert found["peak_bytes"] > LARGE_BUDGET_BYTES / 2, "its hot rows take more than a small one has"
    assert found["peak_bytes"] <= most_held_bytes(LARGE_BUDGET_BYTES)


@pytest.mark.parametrize("stream", STREAMS)
def test_no_task_gets_the_rows_of_a_hot_key_alone(folder: str, stream: str) -> None:
    found = measured(folder, stream)
    for rows in found["rows_of_tasks"]:
        assert len(rows) == 2, "one file a batch is dealt out to both cores"
        assert max(rows) <= 1.1 * min(rows)


@pytest.mark.parametrize("stream", STREAMS)
def test_the_work_is_spread_over_the_workers(folder: str, stream: str) -> None:
    """By processor seconds, which a busy machine does not stretch as it does the clock."""
    used = measured(folder, stream)["cpu_seconds"]
    assert len(used) >= 2
    assert max(used) < 0.75 * sum(used)
