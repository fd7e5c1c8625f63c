"""Calibration of a small store: every constant is there and has the right order."""

import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tidemill.cli.main import app
from tidemill.lab import calibrate_kernels
from tidemill.master import MasterData
from tidemill.model.calibration import Calibration


def test_calibrate_writes_costs_beside_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_kernels, "_LEAST_SECONDS", 0.01)
    monkeypatch.setattr(calibrate_kernels, "TABLE_BYTES", (2**16, 2**23))
    store = tmp_path / "store"
    keys = [f"article {n}" for n in range(20_000)]  # hashed keys are calibrated as others are
    MasterData.build(pa.table({"name": keys, "price": range(20_000)}), key="name", path=store).close()
    told = CliRunner().invoke(app, ["calibrate", str(store), "--json"])
    assert told.exit_code == 0, told.output
    found = Calibration.read(store / "calibration.json")
    assert found == Calibration.from_json(told.stdout)
    for costs in found.by_family.values():
        numbers = [getattr(costs, f.name) for f in dataclasses.fields(costs) if f.name.endswith("_seconds")]
        assert all(0 <= seconds < 0.1 for seconds in numbers)
        assert costs.output_row_seconds > 0
        assert costs.step_seconds > costs.stream_row_seconds
        assert costs.read.seconds(2**20) >= costs.read.seconds(2**14) > costs.probe.seconds(2**20)
    assert json.loads(told.stdout)["format"] == 2
    assert MasterData.open(store).rows == 20_000  # the file beside it does no harm
