"""A build from a DataFrame whose tasks, driver or caller fail: right rows or the old version, and nothing left over."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import tidemill as tm
from tidemill.core.errors import SourceError
from tidemill.master.keys import KeyForm
from tidemill.spark import job_watch, master_build, master_parts
from tidemill.spark.failpoint import VARIABLE
from tidemill.spark.job_watch import watched
from tidemill.spark.master_parts import Part, PartWriter


@pytest.fixture
def many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_build, "_ROWS_OF_A_FILE", 200)


def numbers(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(rows).selectExpr("id AS key", "concat('value ', id) AS value")


def stored(master: tm.MasterData) -> list[dict[str, Any]]:
    return [row for page in master.scan() for row in page.to_pylist()]


def files_of(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


@pytest.fixture
def fail_points(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A folder in which tests name points at which a Python worker dies."""
    folder = tmp_path / "points"
    folder.mkdir()
    spark.sparkContext.environment[VARIABLE] = str(folder)
    yield folder
    del spark.sparkContext.environment[VARIABLE]


def test_a_worker_killed_while_it_writes_is_replaced_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path, many_files: None, fail_points: Path
) -> None:
    (fail_points / "master_part").touch()
    master = tm.MasterData.build(numbers(spark, 2000), key="key", path=tmp_path / "m")
    assert not list(fail_points.iterdir()), "no worker was killed"
    assert sorted(row["key"] for row in stored(master)) == list(range(2000))
    named = sorted(file.name for file in master.manifest.files)
    assert [name for name in files_of(tmp_path / "m") if name.endswith(".bin")] == named
    assert not list((tmp_path / "m/versions").glob(".building*"))


def test_two_attempts_of_a_task_at_a_time_write_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A speculative attempt runs to its end while the first one is half-way."""
    attempts = iter([SimpleNamespace(partitionId=lambda: 3, taskAttemptId=lambda n=n: n) for n in (17, 18)])
    monkeypatch.setattr(master_parts.TaskContext, "get", lambda: next(attempts))
    monkeypatch.setattr(master_parts, "_PIECE_BYTES", 1)
    schema = pa.schema([("key", pa.int64())])
    form = KeyForm.choose(schema, ["key"])
    writer = PartWriter(tmp_path, schema, form.told_by(schema), form, 4096)
    some, more = (pa.record_batch({"c0": np.arange(at, at + 2000)}) for at in (0, 2000))
    answers: list[pa.RecordBatch] = []

    def half_way() -> Iterator[pa.RecordBatch]:
        yield some
        answers.extend(writer.write(iter([some, more])))
        yield more

    answers.extend(writer.write(half_way()))
    parts = [Part.of(answer.to_pylist()[0]) for answer in answers]
    assert [part.file.name for part in parts if part] == ["00003-18.bin", "00003-17.bin"]
    for part in parts:
        assert part is not None
        assert google_crc32c.value((tmp_path / part.file.name).read_bytes()) == part.file.crc
        assert part.counts["rows"] == 4000


def test_a_dataframe_that_fails_leaves_the_old_version(spark: SparkSession, tmp_path: Path) -> None:
    tm.MasterData.build(numbers(spark, 10), key="key", path=tmp_path)
    before = files_of(tmp_path)
    broken = numbers(spark, 100).selectExpr("key", "assert_true(key < 90, 'too many') AS checked")
    with pytest.raises(SourceError, match="too many"):
        tm.MasterData.build(broken, key="key", path=tmp_path)
    assert files_of(tmp_path) == before
    assert tm.MasterData.open(tmp_path).rows == 10


def test_progress_moves_and_its_error_stops_the_build(
    spark: SparkSession, tmp_path: Path, many_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "_POLL_SECONDS", 0.01)
    seen: list[tuple[int, int]] = []
    tm.MasterData.build(
        numbers(spark, 1600), key="key", path=tmp_path, progress=lambda *told: seen.append(told)
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {total for _, total in seen} == {1600}
    assert seen[-1] == (1600, 1600)
    assert len({done for done, _ in seen}) > 2

    def give_up(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tm.MasterData.build(numbers(spark, 1600), key="key", path=tmp_path, progress=give_up)
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    assert tm.MasterData.open(tmp_path).version == 1
    assert not list((tmp_path / "versions").glob(".building*"))


def run_child(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=120,
    )


def test_a_driver_killed_while_its_tasks_write_leaves_the_old_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    tm.MasterData.build(numbers(spark, 100), key="key", path=path)
    died = run_child(
        f"""
        import os, signal
        from pathlib import Path
        import tidemill as tm
        from tidemill.spark import master_build
        from tidemill.spark.session import start_session

        def kill(done, total):
            if done > total / 2:
                os.kill(os.getpid(), signal.SIGKILL)

        master_build._ROWS_OF_A_FILE = 2000
        spark = start_session("killed", cores=2, scratch=Path({str(tmp_path)!r}), low_latency=True)
        rows = spark.range(200_000).selectExpr("id AS key", "repeat('x', 200) AS value")
        tm.MasterData.build(rows, key="key", path={str(path)!r}, progress=kill)
        """
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    left = [folder for folder in (path / "versions").glob(".building*") if list(folder.glob("*.bin"))]
    assert left, "it died before a task had written"
    assert tm.MasterData.open(path).rows == 100
    assert tm.MasterData.build(numbers(spark, 300), key="key", path=path).rows == 300
    assert not list((path / "versions").glob(".building*"))


def test_executors_of_their_own_write_the_parts(tmp_path: Path) -> None:
    """As on a cluster: the executors are other processes than the driver's, each with its own workers."""
    done = run_child(
        f"""
        from pathlib import Path
        from pyspark.sql import SparkSession
        import tidemill as tm
        from tidemill.spark import master_build
        from tidemill.spark.java import use_java
        from tidemill.spark.session import LOW_LATENCY_JAVA

        use_java()
        master_build._ROWS_OF_A_FILE = 6000
        spark = (
            SparkSession.builder.master("local-cluster[2,1,1024]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", LOW_LATENCY_JAVA)
            .config("spark.executor.extraJavaOptions", LOW_LATENCY_JAVA)
            .config("spark.local.dir", {str(tmp_path / "scratch")!r})
            .getOrCreate()
        )
        rows = spark.range(20_000).selectExpr("concat('key ', id) AS key", "id AS value")
        master = tm.MasterData.build(rows, key="key", path={str(tmp_path / "m")!r})
        assert sorted(row["value"] for page in master.scan() for row in page.to_pylist()) == list(range(20_000))
        print("files", len(master.manifest.files))
        """,
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
    )
    assert "files 4" in done.stdout, done.stderr[-3000:]


def test_a_caller_who_gives_up_ends_the_jobs(spark: SparkSession) -> None:
    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(45)
            yield batch

    def give_up(share: float) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        watched(spark, numbers(spark, 10).mapInArrow(slow, "key long, value string").collect, give_up)
    assert time.monotonic() - started < 30
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


def test_a_job_group_of_the_users_stays(spark: SparkSession) -> None:
    spark.sparkContext.setJobGroup("theirs", "of a notebook")
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup("theirs"))
    assert watched(spark, numbers(spark, 10).count, lambda _: None) == 10
    assert set(tracker.getJobIdsForGroup("theirs")) - before
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
