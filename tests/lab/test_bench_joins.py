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
from tidemill.lab.bound_cell import ASSEMBLY
from tidemill.lab.join_cell import CellSpec
from tidemill.lab.join_data import JoinData
from tidemill.lab.kept_cells import KeptCells
from tidemill.lab.measure import measure

FIELDS = {
    "contender", "zipf", "memory_share", "rows_per_s", "bound_rows_per_s", "own_bound_rows_per_s", "bytes_read", "reads",
    "memory_peak_bytes", "memory_budget_bytes", "same_rows", "verified_rows", "warm_up_rows", "reason",
    "assembly_rows_per_s", "assembly_rows_per_s_of_runs", "cached_assembly_rows_per_s", "assembly_way",
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
    assert 0 < enough["rows_per_s"] < enough["bound_rows_per_s"] <= enough["assembly_rows_per_s"]
    assert enough["cached_assembly_rows_per_s"] > 0
    # measured beside the contenders of each table, and no contender itself
    assert enough["assembly_rows_per_s_of_runs"] != too_little["assembly_rows_per_s_of_runs"]
    assert "assembling alone" in done.output
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
        "master_rows": cell.master_rows, "cached_rows_per_s": 9000.0,
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
    # a line a run: mesh, assembling between the contenders, cache
    rates = iter([10.0, 80.0, 10.0, 30.0, 40.0, 30.0, 20.0, 50.0, 20.0])
    monkeypatch.setattr(bench_joins, "measure", lambda cell: fake(cell, next(rates)))
    results = run_bench(replace(options, repeat=3, memory_shares=(0.1,)), quiet)
    assert [(r["contender"], r["rows_per_s"]) for r in results] == [("mesh", 20.0), ("cache", 20.0)]
    assert results[0]["rows_per_s_of_runs"] == [10.0, 30.0, 20.0]
    for result in results:
        assert result["assembly_rows_per_s_of_runs"] == [80.0, 40.0, 50.0]
        assert result["bound_rows_per_s"] == result["assembly_rows_per_s"] == pytest.approx(50.0)


def test_assembling_runs_in_the_midst_of_the_contenders_of_each_table(options: BenchOptions) -> None:
    three = replace(options, contenders=("mesh", "cache", "peer-duckdb"))
    assert [(cell.memory_share, cell.contender) for cell in three.cells()] == [
        (0.1, "mesh"), (0.1, ASSEMBLY), (0.1, "cache"),
        (0.2, "mesh"), (0.2, ASSEMBLY), (0.2, "cache"), (0.2, "peer-duckdb"),
    ]  # fmt: skip


def test_progress_counts_every_cell(options: BenchOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float]] = []
    monkeypatch.setattr(bench_joins, "measure", fake)
    run_bench(replace(options, memory_shares=(0.1,)), lambda text, share: told.append((text, share)))
    shares = {text.split(",")[0]: share for text, share in told}
    assert shares["mesh"] == 0
    assert shares[ASSEMBLY] == pytest.approx(1 / 3)
    assert shares["cache"] == pytest.approx(2 / 3)


def test_a_grid_goes_on_where_it_was_interrupted(
    options: BenchOptions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[tuple[str, float]] = []

    def measured(cell: CellSpec) -> dict[str, Any]:
        ran.append((cell.contender, cell.memory_share))
        if len(ran) == 4:
            raise KeyboardInterrupt
        return fake(cell, None if len(ran) == 3 else 1000.0)

    monkeypatch.setattr(bench_joins, "measure", measured)
    file = tmp_path / "cells.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run_bench(options, quiet, file)
    with file.open("a") as torn:
        torn.write('{"cell": {"conten')
    results = run_bench(options, quiet, file)
    # mesh and assembling are kept; the third failed and is run again, the fourth was interrupted
    assert ran[:3] == [("mesh", 0.1), (ASSEMBLY, 0.1), ("cache", 0.1)]
    assert ran[4:] == [("cache", 0.1), ("mesh", 0.2), (ASSEMBLY, 0.2), ("cache", 0.2)]
    assert len(results) == 4
    assert all(KeptCells(file)[cell, 0]["rows_per_s"] == 1000.0 for cell in options.cells())


def test_a_file_of_cells_without_assembling_gets_it_measured(
    options: BenchOptions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, ran = tmp_path / "cells.jsonl", []
    kept = KeptCells(file)
    for cell in options.cells():
        if cell.contender != ASSEMBLY:
            kept.keep(cell, 0, fake(cell))

    def measured(cell: CellSpec) -> dict[str, Any]:
        ran.append(cell.contender)
        return fake(cell, 5000.0)

    monkeypatch.setattr(bench_joins, "measure", measured)
    results = run_bench(options, quiet, file)
    assert ran == [ASSEMBLY, ASSEMBLY]
    assert [r["bound_rows_per_s"] for r in results] == pytest.approx([5000.0] * 4)


@pytest.mark.parametrize("wrong", [{"rate": None}, {"same_rows": False}])
def test_assembling_that_fails_is_told_and_the_rates_stand_without_a_bound(
    wrong: dict[str, Any], data: JoinData, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        bench_joins, "measure", lambda cell: fake(cell, **(wrong if cell.contender == ASSEMBLY else {}))
    )
    plot = tmp_path / "out.png"
    done = run(data, "--algorithms", "cache,mesh", "--memory-share", "0.1", "--plot", str(plot))
    assert isinstance(done.exception, InternalError if "rate" in wrong else CheckError)
    assert ASSEMBLY in str(done.exception)
    assert "cache" not in str(done.exception)
    assert "no bound" in done.output
    assert done.output.count("1,000") >= 2  # the others' rates
    assert plot.stat().st_size > 10_000


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
