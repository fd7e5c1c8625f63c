"""Calibration as a file: read back as written, and nothing else is taken for one."""

import json
from pathlib import Path

import pytest

from tidemill.core.errors import SpecError, StoreError
from tidemill.model.calibration import FORMAT, Calibration
from tidemill.model.work import COSTS_OF_2008, COSTS_TODAY

CALIBRATION = Calibration(
    measured_at="2026-11-16T08:00:00+00:00",
    store="000001-0-0",
    master_row_bytes=120,
    page_bytes=16_384,
    by_family={"scan": COSTS_OF_2008, "lookup": COSTS_TODAY, "rows": COSTS_TODAY},
    device_bytes_per_s={1: {4096: 1e7, 65_536: 1e8}, 16: {4096: 1e8, 65_536: 1e9}},
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    file.write_text(CALIBRATION.to_json())
    assert Calibration.read(file) == CALIBRATION


def test_joins_get_the_costs_of_their_family() -> None:
    assert CALIBRATION.costs_of("mesh") is COSTS_OF_2008
    assert CALIBRATION.costs_of("tide") is CALIBRATION.costs is COSTS_TODAY


def test_another_format_is_refused_with_both_numbers() -> None:
    newer = json.dumps({**json.loads(CALIBRATION.to_json()), "format": FORMAT + 1})
    with pytest.raises(StoreError, match=f"here.json has format {FORMAT + 1}, this version reads {FORMAT}"):
        Calibration.from_json(newer, where="here.json")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "not json", '{"format": 1}', '{"format": 1, "by_family": {}}']
)
def test_what_is_no_calibration_is_refused(text: str) -> None:
    with pytest.raises(StoreError, match="calibrate"):
        Calibration.from_json(text)


def test_a_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="tidemill calibrate"):
        Calibration.read(tmp_path / "none.json")
