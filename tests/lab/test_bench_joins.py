"""The grid of the join benchmark: its results, its resumption, its failures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidemill.cli.bench import bench
from tidemill.core.errors import CheckError, InternalError, SpecError
from tidemill.lab import bench_joins, device
from tidemill.lab.bench_joins import BenchOptions, run_bench
from tidemill.lab.join_cell import CellSpec
from tidemill.lab.join_data import JoinData
from tidemill.lab.kept_cells import KeptCells
from tidemill.lab.measure import measure

FIELDS = {
    "contender", "zipf", "memory_share", "rows_per_s", "bound_rows_per_s", "own_bound_rows_per_s", "bytes_read", "reads",
    "memory_peak_bytes", "memory_budget_bytes", "same_rows", "verified_rows", "warm_up_rows", "reason",
}  # fmt: skip


def run(data: JoinData, *options: str) -> Any:
    usual = [
        "joins",
        "--rows",
        str(data.rows),
        "--data",
        str(data.folder),
        "--stream-rows",
        "3000",
        "--zipf",
        "1",
    ]
    return CliRunner().invoke(bench, [*usual, "--seconds", "0.5", *options])


def test_results_have_the_agreed_form_and_too_little_memory_is_a_result(
    data: JoinData, tmp_path: Path
) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "out.png"
    shares = ("--memory-share", "0.7", "--memory-share", "0.0001")
    done = run(data, "--algorithms", "cache,peer-duckdb", *shares, "--json", str(out), "--plot", str(plot))
    assert done.exit_code == 0, done.output
    told = json.loads(out.read_text())
    assert told.keys() == {"name", "machine", "seed", "results"}
    assert all(r.keys() >= FIELDS for r in told["results"])
    by_cell = {(r["contender"], r["memory_share"]): r for r in told["results"]}
    assert len(by_cell) == 4
    enough, too_little = by_cell["cache", 0.7], by_cell["cache", 0.0001]
    assert enough["same_rows"]
    assert enough["verified_rows"] >= 1500
    assert 0 < enough["rows_per_s"] < enough["bound_rows_per_s"]
    assert enough["memory_peak_bytes"] > 0
    assert too_little["rows_per_s"] is None
    assert "give at least" in too_little["reason"]
    assert "too little memory" in done.output
    # without a budget: measured once, shown at every share
    assert by_cell["peer-duckdb", 0.7]["rows_per_s"] == by_cell["peer-duckdb", 0.0001]["rows_per_s"]
    assert plot.stat().st_size > 10_000


def test_an_unknown_contender_is_named_with_the_valid_ones(data: JoinData) -> None:
    done = run(data, "--algorithms", "cach")
    assert isinstance(done.exception, SpecError)
    assert "did you mean 'cache'" in str(done.exception)


@pytest.mark.parametrize(
    "wrong", [("--stream-rows", "many"), ("--seconds", "nan"), ("--memory-share", "0"), ("--zipf", "-1")]
)
def test_a_wrong_option_is_named(wrong: tuple[str, str], data: JoinData) -> None:
    done = run(data, *wrong)
    assert isinstance(done.exception, SpecError)
    assert done.exception.option == wrong[0]


def test_a_cell_that_dies_is_a_result_with_its_last_words(data: JoinData) -> None:
    spec = CellSpec("cache", 1.0, 0.7, data.rows, 1000, 0.5, str(data.folder), seed=987)
    result = measure(spec)  # nobody drew a stream with this seed
    assert result["failed"]
    assert result["rows_per_s"] is None
    assert "FileNotFoundError" in result["reason"]


def fake(cell: CellSpec, rate: float | None = 1000.0, **facts: object) -> dict[str, Any]:
    usual = {
        "contender": cell.contender, "zipf": cell.zipf, "memory_share": cell.memory_share, "rows_per_s": rate,
        "bytes_read": 100, "reads": 1, "stream_rows": 10, "memory_peak_bytes": 1, "memory_budget_bytes": 1000,
        "same_rows": True if rate else None, "verified_rows": 1, "reason": None if rate else "died", "failed": rate is None,
    }  # fmt: skip
    return usual | facts


@pytest.fixture(autouse=True)
def quick_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "POINT_SECONDS", 0.01)


@pytest.fixture
def options(data: JoinData) -> BenchOptions:
    return BenchOptions(
        ("mesh", "cache"), (1.0,), (0.1, 0.2), data.rows, data.folder, seed=1, stream_rows=3000
    )


def quiet(_text: str, _share: float) -> None:
    pass


def test_the_median_of_several_runs_stands(options: BenchOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([10.0, 10.0, 30.0, 30.0, 20.0, 20.0])
    monkeypatch.setattr(bench_joins, "measure", lambda cell: fake(cell, next(rates)))
    results = run_bench(replace(options, repeat=3, memory_shares=(0.1,)), quiet)
    assert [r["rows_per_s"] for r in results] == [20.0, 20.0]
    assert results[0]["rows_per_s_of_runs"] == [10.0, 30.0, 20.0]


def test_a_grid_goes_on_where_it_was_interrupted(
    options: BenchOptions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[tuple[str, float]] = []

    def measured(cell: CellSpec) -> dict[str, Any]:
        ran.append((cell.contender, cell.memory_share))
        if len(ran) == 3:
            raise KeyboardInterrupt
        return fake(cell, None if len(ran) == 2 else 1000.0)

    monkeypatch.setattr(bench_joins, "measure", measured)
    file = tmp_path / "cells.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run_bench(options, quiet, file)
    with file.open("a") as torn:
        torn.write('{"cell": {"conten')
    results = run_bench(options, quiet, file)
    # the second failed and is run again, the third was interrupted
    assert ran[3:] == [("cache", 0.1), ("mesh", 0.2), ("cache", 0.2)]
    assert len(results) == 4
    assert all(KeptCells(file)[cell, 0]["rows_per_s"] == 1000.0 for cell in options.cells())


@pytest.mark.parametrize(
    ("facts", "error"), [({"rate": None}, InternalError), ({"same_rows": False}, CheckError)]
)
def test_failed_and_wrong_cells_are_printed_with_the_others_and_end_in_an_error(
    facts: dict[str, Any], error: type[Exception], data: JoinData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        bench_joins, "measure", lambda cell: fake(cell, **(facts if cell.contender == "cache" else {}))
    )
    done = run(data, "--algorithms", "cache,mesh", "--memory-share", "0.1")
    assert isinstance(done.exception, error)
    assert "cache" in str(done.exception)
    assert "mesh" not in str(done.exception)
    assert "1,000" in done.output  # the others' rates
