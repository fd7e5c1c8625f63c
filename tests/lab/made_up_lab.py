"""Experiments made up for a test, found by the lab and by its children in place of the real ones."""

from pathlib import Path
from textwrap import dedent, indent

import pytest

from tidemill.lab import experiments, run_experiments

_MODULE = """
import os, subprocess, sys, time
from pathlib import Path
from tidemill.lab.experiment import Curve, Experiment, Figure, Finding, Setting

def run(setting: Setting) -> Finding:
{body}

EXPERIMENTS = [Experiment(id="{id}", claim="{claim}", source="a paper, Fig. 1", sizes="ten rows", run=run)]
"""
_CHILD = """
import runpy
from tidemill.lab import experiments
experiments.__path__ = [{folder!r}]
runpy.run_module("tidemill.lab.experiment_cell", run_name="__main__")
"""

HOLDS = """
    setting.progress("counting", 0.5)
    lines = [
        Curve(label="mesh", x=[1, 10, 100], y=[2000.0, 26000.0, 9000.0]),
        Curve(label="mesh", x=[1, 10, 100], y=[2200.0, 26000.0, 9100.0], kind="predicted"),
    ]
    figure = Figure(title="Rate <over> memory", x_label="MB", y_label="rows/s", curves=lines, log_x=True)
    return Finding(holds=True, measured="26,000 rows/s", values={"rate": 26000.0}, figures=[figure])
"""


class MadeUpLab:
    """A folder of experiments that takes the place of the lab's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, body: str, claim: str = "it rises, then falls") -> None:
        text = _MODULE.format(body=indent(dedent(body).strip(), "    "), id=name, claim=claim)
        (self.folder / f"{self.folder.parent.name}_{name.replace('-', '_')}.py").write_text(text)


def made_up_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUpLab:
    folder, program = tmp_path / "experiments", tmp_path / "program"
    folder.mkdir()
    program.mkdir()
    (program / "made_up_child.py").write_text(_CHILD.format(folder=str(folder)))
    monkeypatch.setattr(experiments, "__path__", [str(folder)])
    monkeypatch.setattr(run_experiments, "CHILD", "made_up_child")
    monkeypatch.setenv("PYTHONPATH", str(program), prepend=":")
    return MadeUpLab(folder)
