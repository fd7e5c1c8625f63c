"""Real memory of a join, measured from outside Python's own books."""

import json
import subprocess
import sys
from pathlib import Path

CHILD = Path(__file__).with_name("child_cache_join.py")
BUDGET_BYTES = 32_000_000


def test_growth_stays_within_the_budget(tmp_path: Path):
    """1 M rows of about 110 B, 500,000 stream rows with Zipf 1: the master data is 3.4 times the budget."""
    ran = subprocess.run(
        [sys.executable, str(CHILD), str(tmp_path), str(BUDGET_BYTES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    measured = json.loads(ran.stdout)
    assert measured["finished_rows"] == 500_000
    assert measured["hot_hits"] > 250_000
    assert measured["master_bytes"] > 3 * BUDGET_BYTES
    # 10 % for what no reservation sees, and a floor for the allocator's own arenas.
    assert measured["growth_bytes"] <= BUDGET_BYTES * 1.1 + 16 * 2**20
    assert measured["growth_bytes"] > 5_000_000, "nothing was measured"
