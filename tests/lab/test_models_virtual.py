"""The grid of models against runs: cells that are done are not run again after an interruption."""

from pathlib import Path
from typing import Any

import pytest

from tidemill.lab.experiment import Setting
from tidemill.lab.experiments import models_virtual
from tidemill.lab.predicted import Compared
from tidemill.model.catalog import MODELLED


def test_an_interrupted_grid_goes_on_and_a_finished_one_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def compare(name: str, zipf: float, share: float, **_facts: Any) -> Compared | None:
        ran.append(name)
        if name == "mesh" and ran.count("mesh") == 1:
            raise KeyboardInterrupt
        if name == "inl":
            return None  # too little memory
        return Compared(algorithm=name, zipf=zipf, memory_share=share, predicted=110, measured=100)

    monkeypatch.setattr(models_virtual, "compare_virtual", compare)
    monkeypatch.setattr(models_virtual, "QUICK_GRID", ((1.0,), (0.1,)))
    setting = Setting(quick=True, folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        models_virtual.run_virtual_grid(setting)
    finding = models_virtual.run_virtual_grid(setting)
    assert sorted(ran) == sorted([*MODELLED, "mesh"])
    assert finding.values["cells"] == len(MODELLED) - 1
    assert finding.values["median_error"] == pytest.approx(0.1)
    models_virtual.run_virtual_grid(setting)
    assert len(ran) == 2 * len(MODELLED) + 1


def test_the_whole_grid_is_that_of_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[tuple[str, float, float]] = set()
    rows: set[int] = set()

    def compare(name: str, zipf: float, share: float, *, master_rows: int, **_facts: Any) -> Compared | None:
        asked.add((name, zipf, share))
        rows.add(master_rows)
        if master_rows == models_virtual.FULL_ROWS and share < 0.01:
            return None  # too little memory for so few rows: larger ones are tried
        return Compared(algorithm=name, zipf=zipf, memory_share=share, predicted=100, measured=100)

    monkeypatch.setattr(models_virtual, "compare_virtual", compare)
    finding = models_virtual.run_virtual_grid(Setting(quick=False, folder=tmp_path))
    assert len(asked) == finding.values["cells"] == 20 * len(MODELLED)
    assert rows == {models_virtual.FULL_ROWS, models_virtual.LARGE_ROWS}
    assert finding.holds
