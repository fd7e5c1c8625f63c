"""The Spark benchmark: its data, its results, its refusals, and a judge that sees wrong rows."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tidemill.cli.bench import bench
from tidemill.core.errors import CheckError, InternalError, SpecError
from tidemill.lab import flink_setup, spark_bench
from tidemill.lab.kept_cells import KeptCells
from tidemill.lab.spark_bench import SparkOptions, run_spark_bench
from tidemill.lab.spark_cell import SparkCell, rates
from tidemill.lab.spark_contenders import BY_DEFAULT
from tidemill.lab.spark_data import FILES_PER_BATCH, SparkData, check_lot, measured_lot, own_warm_lot
from tidemill.lab.spark_measure import measure, result
from tidemill.lab.spark_table import remarks

ROWS, BATCH_ROWS = 20_000, 1_000
FIELDS = {
    "contender", "batch_rows", "memory_share", "rows_per_s", "batch_ms_p50", "memory_peak_bytes", "same_rows",
}  # fmt: skip


def quiet(_text: str, _share: float) -> None:
    pass


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> SparkData:
    made = SparkData(tmp_path_factory.mktemp("bench-spark"), ROWS, seed=1)
    made.build([BATCH_ROWS], quiet)
    return made


def run(data: SparkData, *options: str) -> Any:
    usual = ["--master-rows", str(data.master_rows), "--data", str(data.folder), "--batches", str(BATCH_ROWS)]
    return CliRunner().invoke(bench, ["spark", *usual, "--seconds", "1", "--cores", "1", *options])


def cell(data: SparkData, contender: str = "ceiling", share: float | None = None) -> SparkCell:
    return SparkCell(contender, BATCH_ROWS, share, ROWS, 1.0, 1, str(data.folder), 1)


def test_a_small_run_gives_right_rows_in_the_agreed_form(data: SparkData, tmp_path: Path) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "out.png"
    names = ("--contenders", "ceiling,spark-default,tide", "--memory-share", "6")
    done = run(data, *names, "--json", str(out), "--plot", str(plot))
    assert done.exit_code == 0, done.output
    told = json.loads(out.read_text())
    assert told["name"] == "spark"
    by_name = {r["contender"]: r for r in told["results"]}
    assert by_name.keys() == {"ceiling", "spark-default", "tide"}
    for name, found in by_name.items():
        assert found.keys() >= FIELDS
        assert found["same_rows"] is True
        assert found["verified_rows"] == BATCH_ROWS
        assert found["batch_rows"] == BATCH_ROWS
        assert found["memory_share"] == (6 if name == "tide" else None)
        assert found["rows_per_s"] == pytest.approx(BATCH_ROWS / found["batch_ms_p50"] * 1000)
    assert by_name["spark-default"]["memory_peak_bytes"] > 100e6  # a JVM
    assert by_name["tide"]["memory_peak_bytes"] < 100e6  # workers above idle
    assert plot.stat().st_size > 10_000
    assert not list(data.folder.glob("run-*"))


def test_too_little_memory_is_a_result(data: SparkData) -> None:
    done = run(data, "--contenders", "tide", "--memory-share", "0.001")
    assert done.exit_code == 0, done.output
    assert "too little memory" in done.output
    assert "give at least" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--contenders", "spark-cache", "did you mean 'spark-cached'"),
        ("--batches", "many", "--batches must be"),
        ("--batches", "2", "--batches must be"),
        ("--memory-share", "0", "--memory-share must be"),
        ("--master-rows", "-1", "--master-rows must be"),
    ],
)
def test_a_wrong_option_is_named(option: str, value: str, text: str, data: SparkData) -> None:
    done = run(data, option, value)
    assert isinstance(done.exception, SpecError)
    assert text in str(done.exception)


def test_files_hold_every_master_row_once_and_the_popular_keys_are_the_same_in_all_lots(
    data: SparkData,
) -> None:
    keys = pq.read_table(data.parquet, columns=["key"]).column("key").to_pylist()
    assert sorted(keys) == list(range(ROWS))
    assert len(list(data.parquet.iterdir())) == 10
    warm, measured = (Counter(_keys(data, lot)) for lot in (data.warm_lot(), measured_lot(BATCH_ROWS)))
    assert warm.most_common(1)[0][0] == measured.most_common(1)[0][0]
    assert sum(count for key, count in measured.items() if key >= ROWS) == pytest.approx(
        0.01 * measured.total(), rel=0.3
    )


def test_lots_are_cut_into_batches_and_differ(data: SparkData) -> None:
    lot = measured_lot(BATCH_ROWS)
    files = sorted(data.path(lot).glob("*.parquet"))
    assert len(files) == lot.batches * FILES_PER_BATCH
    assert {pq.read_metadata(file).num_rows for file in files} == {BATCH_ROWS // FILES_PER_BATCH}
    assert [file.stat().st_mtime for file in files] == sorted({file.stat().st_mtime for file in files})
    for other in (check_lot(BATCH_ROWS), own_warm_lot(BATCH_ROWS)):
        assert _keys(data, other)[:BATCH_ROWS] != _keys(data, lot)[:BATCH_ROWS]


def _keys(data: SparkData, lot: Any) -> list[int]:
    files = sorted(data.path(lot).glob("*.parquet"))
    return [key for file in files for key in pq.read_table(file, columns=["key"]).column("key").to_pylist()]


def test_what_was_built_is_not_built_again(data: SparkData) -> None:
    texts: list[str] = []
    data.build([BATCH_ROWS], lambda text, _: texts.append(text))
    assert texts == []


def test_warm_up_batches_do_not_count(data: SparkData) -> None:
    times = [9000, 8000, *[100, 200, 300, 100, 200, 300, 100, 200]]
    batches = [{"durationMs": {"triggerExecution": ms, "addBatch": ms // 2}} for ms in times]
    found = rates(cell(data), batches)
    assert (found["warm_up_batches"], found["batches"]) == (2, 8)
    assert (found["batch_ms_p50"], found["add_batch_ms_p50"]) == (200, 100)
    assert found["rows_per_s"] == 5 * BATCH_ROWS
    assert rates(cell(data), batches[:2])["batch_ms_p50"] == 8000
    only = rates(cell(data), batches[:1])
    assert (only["warm_up_batches"], only["batches"]) == (0, 1), "of one that is slow, and warm already"


def test_every_default_contender_has_its_cells_and_joins_one_for_each_share(data: SparkData) -> None:
    options = SparkOptions(BY_DEFAULT, (1000, 10), (0.01, 0.05, 0.1), ROWS, data.folder, 1)
    shares = {name: {c.memory_share for c in options.cells() if c.contender == name} for name in BY_DEFAULT}
    assert shares["tide"] == shares["moij"] == shares["mesh"] == {0.01, 0.05, 0.1}
    assert shares["lookup-postgres"] == shares["flink-lookup"] == {0.05}
    assert shares["spark-bucketed"] == shares["ceiling"] == {None}


def test_a_run_goes_on_where_it_was_interrupted(
    data: SparkData, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[str] = []

    def measured(cells: list[SparkCell], ended: Any) -> None:
        ran.extend(c.contender for c in cells)
        if len(ran) == 2:
            raise KeyboardInterrupt
        for c in cells:
            ended(c, result(c, {"rows_per_s": 1.0}))

    monkeypatch.setattr(spark_bench, "measure", measured)
    options = SparkOptions(("ceiling", "spark-default"), (BATCH_ROWS,), (0.1,), ROWS, data.folder, 1)
    file = tmp_path / "cells.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run_spark_bench(options, quiet, file)
    results = run_spark_bench(options, quiet, file)
    assert ran == ["ceiling", "spark-default", "spark-default"]
    assert [r["contender"] for r in results] == ["ceiling", "spark-default"]
    assert all((c, 0) in KeptCells(file) for c in options.cells())


def test_the_median_of_several_runs_stands(data: SparkData, monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([10.0, 90.0, 30.0, 70.0, 20.0, 80.0])  # whole sets one after the other

    def measured(cells: list[SparkCell], ended: Any) -> None:
        for c in cells:
            ended(c, result(c, {"rows_per_s": next(told), "same_rows": True}))

    monkeypatch.setattr(spark_bench, "measure", measured)
    options = SparkOptions(("ceiling", "tide"), (BATCH_ROWS,), (0.1,), ROWS, data.folder, 1, repeat=3)
    results = run_spark_bench(options, quiet)
    assert [(r["contender"], r["rows_per_s"]) for r in results] == [("ceiling", 20.0), ("tide", 80.0)]
    assert results[0]["rows_per_s_of_runs"] == [10.0, 30.0, 20.0]


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ({"reason": "died", "kind": "failed"}, InternalError),
        ({"rows_per_s": 1.0, "batch_ms_p50": 1, "memory_peak_bytes": 1, "same_rows": False}, CheckError),
        ({"reason": "no initdb", "kind": "missing"}, None),
    ],
)
def test_wrong_and_failed_cells_end_in_an_error_and_missing_ones_do_not(
    found: dict[str, Any], error: Any, data: SparkData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        spark_bench, "measure", lambda cells, ended: [ended(c, result(c, found)) for c in cells]
    )
    done = run(data, "--contenders", "lookup-postgres")
    assert (done.exception and type(done.exception)) == error
    if error is None:
        assert "not available" in done.output
        assert "no initdb" in done.output


def test_a_child_that_dies_is_a_result_with_its_last_words(data: SparkData) -> None:
    ended: list[dict[str, Any]] = []
    lost = SparkCell("ceiling", BATCH_ROWS, None, ROWS, 2.0, 1, str(data.folder / "nowhere"), 1)
    measure([lost], lambda _, found: ended.append(found))
    assert ended[0]["failed"]
    assert "FileNotFoundError" in ended[0]["reason"]
    assert next(remarks(ended)).startswith("ceiling, 1,000 rows a batch: exit code")


def test_a_child_ends_with_its_parent_however_that_ends(data: SparkData) -> None:
    code = (
        "import json, sys; from tidemill.lab.spark_cell import SparkCell; from tidemill.lab.spark_measure import measure;"
        "measure([SparkCell(**json.loads(sys.argv[1]))], lambda *_: None)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, json.dumps(cell(data).to_dict())], env=os.environ)
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while not any(child.name() == "java" for child in children) and time.monotonic() < deadline:
        time.sleep(0.2)
        children = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.wait()
    assert len(children) >= 2
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []


def test_flink_that_cannot_be_had_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "installed").touch()
    monkeypatch.setattr(flink_setup.shutil, "which", lambda _: None)
    with pytest.raises(flink_setup.StoreError, match=r"Maven .* is not installed") as caught:
        flink_setup.flink(tmp_path)
    assert caught.value.code == "no_flink"
