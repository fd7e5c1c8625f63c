"""Real memory of every join, measured from outside Python's own books."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.join.catalog import JOINS

CHILD = Path(__file__).with_name("child_join.py")
BUDGET_BYTES = 20_000_000
STREAM_ROWS = {"cache": 400_000, "moij": 400_000, "inl": 10_000}
"""Enough to fill the budget; one read a row is slow."""
LEAST_HOT_SHARE = {"cache": 0.5, "moij": 0.2}
# The nested loop holds the master data as Python objects: it is for reading, not for use.
MEASURED = sorted(set(JOINS) - {"reference"})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("master"))
    subprocess.run([sys.executable, str(CHILD), folder], check=True)
    return folder


@pytest.mark.parametrize("name", MEASURED)
def test_growth_stays_within_the_budget(name: str, store: str):
    """600,000 rows of about 110 B against a stream with Zipf 1: the master data is 3 times the budget."""
    rows = STREAM_ROWS.get(name, 200_000)
    ran = subprocess.run(
        [sys.executable, str(CHILD), store, name, str(BUDGET_BYTES), str(rows)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    measured = json.loads(ran.stdout)
    assert measured["finished_rows"] == rows
    assert measured["master_bytes"] > 3 * BUDGET_BYTES
    # 10 % for what no reservation sees, and a floor for the allocator's own arenas.
    assert measured["growth_bytes"] <= BUDGET_BYTES * 1.1 + 16 * 2**20
    assert measured["growth_bytes"] > measured["held_bytes"] / 4, "nothing was measured"
    assert measured["hot_hits"] >= rows * LEAST_HOT_SHARE.get(name, 0)
