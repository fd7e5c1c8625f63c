"""The join benchmark on little data: every contender gives the right rows, and results have the agreed form."""

import json
import subprocess
import sys
from pathlib import Path

from tidemill.join.catalog import JOINS
from tidemill.lab.peers import PEERS

TIDEMILL = str(Path(sys.executable).with_name("tidemill"))
FIELDS = {
    "contender", "zipf", "memory_share", "rows_per_s", "bound_rows_per_s", "bytes_read", "memory_peak_bytes", "same_rows",
}  # fmt: skip


def test_every_contender_gives_the_rows_of_duckdbs_join(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(TIDEMILL, "bench", "joins", "--rows", "30000", "--stream-rows", "6000", "--zipf", "1"),
            *("--memory-share", "0.5", "--data", str(tmp_path / "data")),
            *("--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")),
        ],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads((tmp_path / "out.json").read_text())
    assert told.keys() == {"name", "machine", "seed", "results"}
    assert {r["contender"] for r in told["results"]} == {*JOINS, *PEERS} - {"reference"}
    assert all(r.keys() >= FIELDS for r in told["results"])
    assert [r["contender"] for r in told["results"] if not r["same_rows"]] == []
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_an_unknown_contender_is_named_with_the_valid_ones(tmp_path: Path) -> None:
    done = subprocess.run(
        [TIDEMILL, "bench", "joins", "--algorithms", "cach", "--data", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "did you mean 'cache'" in done.stderr
