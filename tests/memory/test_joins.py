"""Real memory of every join, measured from outside Python's own books."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tidemill.join.catalog import JOINS

CHILD = Path(__file__).with_name("child_join.py")
BUDGET_BYTES = 20_000_000
# 10 % for what no reservation sees, and a floor for the allocator's own arenas.
MOST_GROWTH_BYTES = BUDGET_BYTES * 1.1 + 16 * 2**20
STREAM_ROWS = {"cache": 400_000, "moij": 1_500_000, "tide": 1_000_000, "inl": 10_000}
"""Enough to fill the budget; one read a row is slow."""
LEAST_HOT_SHARE = {"cache": 0.5, "moij": 0.2, "tide": 0.3}
# The nested loop holds the master data as Python objects: it is for reading, not for use.
MEASURED = sorted(set(JOINS) - {"reference"})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("master"))
    subprocess.run([sys.executable, str(CHILD), folder], check=True)
    return folder


@cache
def measured(
    store: str, name: str, rows: int, *, reads_in_flight: int = 1, keys: str = "zipf"
) -> dict[str, int]:
    """What a child process found."""
    asked = [store, name, BUDGET_BYTES, rows, reads_in_flight, keys]
    ran = subprocess.run(
        [sys.executable, str(CHILD), *map(str, asked)], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    found: dict[str, int] = json.loads(ran.stdout)
    return found


def zipf(store: str, name: str, reads_in_flight: int) -> dict[str, int]:
    """600,000 rows of about 110 B against a stream with Zipf 1: the master data is 3 times the budget."""
    return measured(store, name, STREAM_ROWS.get(name, 200_000), reads_in_flight=reads_in_flight)


@pytest.mark.parametrize("reads_in_flight", [1, 4])
@pytest.mark.parametrize("name", MEASURED)
def test_what_is_measured_is_a_join_at_work(name: str, reads_in_flight: int, store: str):
    rows, found = STREAM_ROWS.get(name, 200_000), zipf(store, name, reads_in_flight)
    assert found["finished_rows"] == rows
    assert found["master_bytes"] > 3 * BUDGET_BYTES
    assert found["hot_hits"] >= rows * LEAST_HOT_SHARE.get(name, 0)
    assert found["growth_bytes"] > found["held_bytes"] / 4, "nothing was measured"


CASES = [(name, n) for name in MEASURED for n in (1, 4)]


@pytest.mark.parametrize(("name", "reads_in_flight"), CASES)
def test_growth_stays_within_the_budget(name: str, reads_in_flight: int, store: str):
    assert zipf(store, name, reads_in_flight)["growth_bytes"] <= MOST_GROWTH_BYTES


@pytest.mark.parametrize("name", ["cache", "moij", "tide"])
def test_growth_stays_within_the_budget_when_no_key_exists(name: str, store: str):
    """Keys beyond the last one: in tide as many as can wait do, all for the same region."""
    found = measured(store, name, 1_000_000, keys="absent")
    assert found["finished_rows"] == 1_000_000
    assert found["growth_bytes"] <= MOST_GROWTH_BYTES
