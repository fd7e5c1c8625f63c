import json
import os
import sys
import time
from pathlib import Path

import pytest

from tidemill.cli import checks


def by_name(answer: str) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in json.loads(answer)["checks"]}


def test_doctor_finds_this_machine_fit(tidemill):
    done = tidemill("doctor")
    assert done.returncode == 0, done.stdout
    assert "FAIL" not in done.stdout
    assert "\x1b" not in done.stdout


def test_json_says_what_was_found(tidemill):
    found = by_name(tidemill("doctor", "--json").stdout)
    assert found["worker python"]["finding"].endswith(sys.executable)
    assert found["java"]["status"] == "OK"


def test_failure_has_a_fix_and_an_exit_code(tidemill):
    # "/proc" exists for everybody and takes no files, for root neither.
    done = tidemill("doctor", "--json", "--data", "/proc/nowhere/tidemill-demo")
    disk = by_name(done.stdout)["disk"]
    assert done.returncode == 2
    assert json.loads(done.stdout)["ok"] is False
    assert disk["status"] == "FAIL"
    assert disk["fix"]


def test_unfitting_java_home_is_named_and_passed_over(tidemill, tmp_path):
    java = by_name(tidemill("doctor", "--json", JAVA_HOME=str(tmp_path)).stdout)["java"]
    assert java["status"] == "OK"
    assert f"skipped JAVA_HOME: {tmp_path}" in java["finding"]


def test_other_worker_python_is_a_warning(tidemill):
    found = by_name(tidemill("doctor", "--json", PYSPARK_PYTHON="/usr/bin/env").stdout)["worker python"]
    assert (found["status"], found["fix"]) == ("WARN", "unset PYSPARK_PYTHON")


@pytest.mark.parametrize(
    ("available", "status"), [(checks.LEAST_MEMORY_BYTES - 1, "FAIL"), (2 * 10**9, "WARN"), (3 * 10**9, "OK")]
)
def test_memory_is_judged_by_what_the_container_has_left(tmp_path, monkeypatch, available, status):
    (tmp_path / "memory.max").write_text(f"{available + 1000}\n")
    (tmp_path / "memory.current").write_text("1000\n")
    left = checks.available_memory_bytes(tmp_path)
    assert left == available
    monkeypatch.setattr(checks, "available_memory_bytes", lambda: left)
    assert checks.memory().status == status


def test_container_without_a_limit_counts_the_machine(tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert checks.available_memory_bytes(tmp_path) > 0


def test_full_disk_is_a_failure_with_both_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "NEEDED_DISK_BYTES", 10**18)
    found = checks.disk(tmp_path)
    assert found.status == "FAIL"
    assert "needs 1e+06 TB" in found.finding


def test_shared_memory_that_is_absent_is_a_warning(tmp_path):
    assert checks.shared_memory(tmp_path / "none").status == "WARN"


def test_kernels_are_absent_compiled_or_stale(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    cache = tmp_path / "join" / "parts" / "__pycache__"
    cache.mkdir(parents=True)
    assert checks.kernels(tmp_path).status == "WARN"
    source = cache.parent / "hashing.py"
    source.touch()
    index = cache / "hashing.probe-12.py311.nbi"
    index.touch()
    assert checks.kernels(tmp_path).status == "OK"
    later = time.time() + 60
    os.utime(source, (later, later))
    assert "1 of 1" in checks.kernels(tmp_path).finding


def test_settings_that_a_file_of_sparks_lacks_are_named(tmp_path: Path):
    assert checks.session_settings(tmp_path).status == "OK"
    file = tmp_path / "spark-defaults.conf"
    file.write_text("# ours\nspark.sql.adaptive.enabled false\nspark.master=local[4]\n")
    found = checks.session_settings(tmp_path)
    assert found.status == "WARN"
    assert "spark.sql.adaptive.enabled" not in found.finding
    assert "280,000 -> 570,000" in found.finding
    assert '"spark.master local[4,4]"' in found.fix
