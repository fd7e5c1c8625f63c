"""Experiments of the MOIJ paper at tiny size: a verdict each, by the rates that were measured."""

from pathlib import Path

import pytest

from tidemill.core.errors import SpecError
from tidemill.lab.data import tpch
from tidemill.lab.experiment import Setting, experiment
from tidemill.lab.experiments import moij_6, moij_7_sets
from tidemill.lab.experiments.moij_6 import _memory_for
from tidemill.lab.moij_setup import MoijSetup, is_near


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    small = MoijSetup(setting=Setting(quick=True, folder=tmp_path), scale=2000, page_bytes=4096)
    monkeypatch.setattr(MoijSetup, "of", lambda _setting: small)
    monkeypatch.setattr(moij_7_sets, "_PAGE_BYTES", 4096)
    monkeypatch.setattr(moij_6, "_shares", lambda _setting: [0.1, 0.4])
    monkeypatch.setattr(moij_7_sets, "_SHARES", [0.1, 0.2])
    monkeypatch.setattr(moij_7_sets, "_TPCH_QUICK", 0.02)
    monkeypatch.setattr(moij_7_sets, "_WEATHER_QUICK", 500)
    return Setting(quick=True, folder=tmp_path)


@pytest.mark.parametrize("name", ["moij-6a", "moij-6b", "moij-7c", "moij-7d", "moij-7e"])
def test_every_figure_has_a_verdict_with_its_numbers(tiny: Setting, name: str) -> None:
    finding = experiment(name).run(tiny)
    assert finding.measured
    assert finding.holds or finding.reason
    assert all(value == value for value in finding.values.values())
    assert all(len(curve.x) == len(curve.y) > 1 for figure in finding.figures for curve in figure.curves)


def test_memory_for_a_rate_lies_between_the_points_of_the_grid() -> None:
    shares, rates = [0.01, 0.04, 0.16], [10.0, 20.0, 40.0]
    assert _memory_for(20.0, shares, rates) == pytest.approx(0.04)
    assert _memory_for(20.0 * 2**0.5, shares, rates) == pytest.approx(0.08)
    # A point that is slower than one with less memory does not make a rate need more.
    assert _memory_for(20.0, [*shares, 0.3], [10.0, 20.0, 15.0, 50.0]) <= 0.16


def test_ratios_are_near_within_a_third() -> None:
    assert is_near(1.9, 1.5)
    assert not is_near(2.0, 1.5)
    assert not is_near(1.0, 1.5)


def test_without_a_generator_tpch_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise SpecError("there is no generator", code="no_tpch_generator", next_move="install it")

    monkeypatch.setattr(moij_7_sets, "generator", missing)
    finding = experiment("moij-7d").run(Setting(quick=True, folder=tmp_path))
    assert not finding.holds
    assert "no generator" in finding.reason
    assert tpch.TpchData(scale_factor=1).workload.rows_per_key == 4
