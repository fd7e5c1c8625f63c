"""`tidemill demo` as a user runs it: it ends by itself, tells the truth, and leaves no process behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

TIDEMILL = str(Path(sys.executable).with_name("tidemill"))
KEYS = {
    "rows_in", "rows_out", "rejected", "unmatched", "lost", "doubled", "altered", "freshness_p50_ms",
    "freshness_p99_ms", "hot_hit_share", "memory_budget_bytes", "memory_peak_bytes", "hook_us_per_row",
}  # fmt: skip

pytestmark = pytest.mark.timeout(240)


def test_demo_ends_by_itself_with_nothing_lost_doubled_or_altered(tmp_path: Path) -> None:
    done = subprocess.run(
        [TIDEMILL, "demo", "--rows", "3000", "--rate", "1500", "--data", str(tmp_path / "demo"), "--json"],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts.keys() >= KEYS
    assert (facts["lost"], facts["doubled"], facts["altered"]) == (0, 0, 0)
    assert facts["rows_in"] == 3000 + facts["warm_up_rows"]
    assert facts["rows_out"] + facts["rejected"] + facts["unmatched"] == facts["rows_in"]
    assert 0 < facts["memory_peak_bytes"] <= facts["memory_budget_bytes"]
    assert 0 < facts["freshness_p50_ms"] <= facts["freshness_p99_ms"]
    asked = subprocess.run(
        [TIDEMILL, "sql", "SELECT count(*) AS n FROM sales", "--data", str(tmp_path / "demo"), "--json"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert json.loads(asked.stdout)[0]["n"] == facts["rows_out"]


@pytest.mark.parametrize("moment", ["starting Spark", "capture "])
@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process_behind(
    tmp_path: Path, moment: str, with_signal: signal.Signals
) -> None:
    demo = subprocess.Popen(
        [TIDEMILL, "demo", "--seconds", "60", "--data", str(tmp_path / "demo"), "--plain"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert demo.stdout is not None
    for line in demo.stdout:
        if moment in line:
            break
    time.sleep(1.0)  # let Spark's launcher start what it starts
    family = psutil.Process(demo.pid).children(recursive=True)
    assert len(family) >= 3
    os.kill(demo.pid, with_signal)
    demo.communicate(timeout=60)
    assert demo.returncode == (130 if with_signal == signal.SIGINT else -signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert [p.cmdline() for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rate", "-5"], "--rate must be more than zero"),
        (["--memory", "lots"], "'lots' is not a size in bytes"),
        (["--memory", "100 kB"], "give at least"),
        (["--data", "{file}"], "is a file"),
        (["--data", "{foreign}"], "holds files that no demo made"),
    ],
)
def test_bad_arguments_end_in_one_clear_line_before_anything_starts(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").touch()
    places = {"file": tmp_path / "file", "foreign": tmp_path / "foreign"}
    filled = [a.format(**places) for a in arguments]
    done = subprocess.run(
        [TIDEMILL, "demo", *filled], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
    )
    assert done.returncode in (2, 6)
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert (tmp_path / "foreign" / "thesis.txt").exists()
