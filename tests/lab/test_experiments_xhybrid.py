"""Experiments of the X-HYBRIDJOIN paper at tiny size: a verdict each, by the rates that were measured."""

from pathlib import Path

import pytest

from tidemill.lab import xhybrid_setup
from tidemill.lab.experiment import Setting, experiment
from tidemill.lab.experiments import xhybrid_3
from tidemill.lab.experiments.xhybrid_3 import _EVEN, _judged
from tidemill.lab.xhybrid_setup import XHybridSetup

IN_ORDER = {"x_hybrid": [9.0, 8.0], "hybrid": [6.0, 5.0], "reduced_mesh": [5.0, 4.9], "mesh": [5.0, 4.0]}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setattr(xhybrid_setup, "QUICK_SCALE", 200)
    return Setting(quick=True, folder=tmp_path)


@pytest.mark.parametrize("name", ["xhybrid-3b", "xhybrid-4", "xhybrid-5"])
def test_every_figure_has_a_verdict_with_its_numbers(tiny: Setting, name: str) -> None:
    asked = experiment(name)
    finding = asked.run(tiny)
    assert finding.measured
    assert finding.holds or finding.reason
    assert all(value == value for value in finding.values.values())
    assert all(len(curve.x) == len(curve.y) > 1 for figure in finding.figures for curve in figure.curves)


def test_a_resident_part_helps(tiny: Setting) -> None:
    setup = XHybridSetup.of(tiny)
    extended, plain = (
        setup.runs.rows_per_s(setup.run(name, master_rows=2e6, memory_mb=150))
        for name in ("x_hybrid", "hybrid")
    )
    assert extended > 1.2 * plain


def test_the_order_is_judged_at_every_point() -> None:
    even = {_EVEN: [5.0, 5.0]}
    assert _judged(IN_ORDER | even) == (True, [])
    for name, rates in {"x_hybrid": [9.0, 4.0], "mesh": [5.0, 5.5], "reduced_mesh": [4.0, 4.9]}.items():
        holds, why = _judged(IN_ORDER | even | {name: rates})
        assert not holds
        assert why


def test_the_fall_of_the_share_is_part_of_the_claim(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setting = Setting(quick=True, folder=tmp_path)
    for last, holds in ((5.0, True), (7.0, False)):
        rates = {
            "x_hybrid": [10.0] * 3,
            "hybrid": [7.0, 6.0, last],
            "reduced_mesh": [5.0] * 3,
            "mesh": [5.0] * 3,
        }
        monkeypatch.setattr(xhybrid_3, "_rates", lambda *_, rates=rates: rates | {_EVEN: [5.0] * 3})
        assert xhybrid_3.run_3a(setting).holds is holds
