"""The lab's commands: verdicts, failures, time-outs, resumption."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.lab.made_up_lab import HOLDS, MadeUpLab, made_up_lab
from typer.testing import CliRunner

from tidemill.cli.lab import lab
from tidemill.core.errors import InternalError, SpecError
from tidemill.lab.run_experiments import LabOptions, run_experiments

FIELDS = {
    "id",
    "claim",
    "holds",
    "measured",
    "reason",
    "values",
    "figures",
    "seed",
    "quick",
    "sizes",
    "verdict",
}


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUpLab:
    return made_up_lab(tmp_path, monkeypatch)


def run(tmp_path: Path, *arguments: str) -> Any:
    return CliRunner().invoke(lab, ["run", *arguments, "--data", str(tmp_path / "data")])


def quiet(_text: str, _share: float) -> None:
    pass


def test_results_have_the_agreed_form_and_the_others_go_on_after_a_failure(
    made_up: MadeUpLab, tmp_path: Path
):
    made_up.add("a-1", "return Finding(holds=False, measured='5 of 10', reason='an SSD [not a disk]')")
    made_up.add("b-2", "raise ValueError('no such page')")
    made_up.add("c-3", HOLDS)
    out, plots = tmp_path / "deep" / "out.json", tmp_path / "plots"
    done = run(tmp_path, "all", "--quick", "--json", str(out), "--plots", str(plots))
    assert isinstance(done.exception, InternalError)
    assert done.exception.ids == ["b-2"]
    told = json.loads(out.read_text())
    assert told.keys() == {"name", "machine", "seed", "results"}
    assert all(result.keys() >= FIELDS for result in told["results"])
    verdicts = {r["id"]: (r["verdict"], r["holds"], r["reason"]) for r in told["results"]}
    assert verdicts == {
        "a-1": ("does not hold here", False, "an SSD [not a disk]"),
        "b-2": ("failed", None, "exit code 1: ValueError: no such page"),
        "c-3": ("holds", True, ""),
    }
    assert "an SSD [not a disk]" in done.output
    assert (plots / "c-3-1.svg").stat().st_size > 5_000
    assert (plots / "c-3-1.png").stat().st_size > 5_000
    assert json.loads((plots / "c-3.json").read_text())["results"] == told["results"][2:]


def test_a_claim_that_does_not_hold_is_no_error(made_up: MadeUpLab, tmp_path: Path):
    made_up.add("a-1", "return Finding(holds=False, measured='5 of 10', reason='an SSD')")
    assert run(tmp_path, "a-1").exit_code == 0


def test_an_experiment_that_hangs_ends_with_all_that_it_started(made_up: MadeUpLab, tmp_path: Path):
    made_up.add(
        "a-1",
        """
        wait = [sys.executable, "-c", "import time; time.sleep(60)"]
        started = subprocess.Popen(wait, stdout=subprocess.DEVNULL)
        (setting.folder / "pid").write_text(str(started.pid))
        time.sleep(60)
        """,
    )
    options = LabOptions(ids=("a-1",), quick=True, folder=tmp_path, limit_s=6.0)
    (result,) = run_experiments(options, quiet)
    assert (result["verdict"], result["reason"]) == ("failed", "not done after 6 s")
    pid, until = int((tmp_path / "pid").read_text()), time.monotonic() + 5
    while _runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(pid)


def test_an_experiment_ends_when_the_command_is_killed(made_up: MadeUpLab, tmp_path: Path):
    made_up.add("a-1", "(setting.folder / 'pid').write_text(str(os.getpid()))\ntime.sleep(60)")
    told = f"""
from tidemill.lab import experiments, run_experiments
from pathlib import Path
experiments.__path__, run_experiments.CHILD = [{str(made_up.folder)!r}], "made_up_child"
options = run_experiments.LabOptions(ids=("a-1",), quick=True, folder=Path({str(tmp_path)!r}))
list(run_experiments.run_experiments(options, lambda _doing, _done: None))
"""
    command = subprocess.Popen([sys.executable, "-c", told])
    file, until = tmp_path / "pid", time.monotonic() + 60
    while not (file.exists() and file.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    command.kill()
    command.wait()
    pid, until = int(file.read_text()), time.monotonic() + 10
    while _runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_number_that_is_none_is_a_failure_and_not_broken_json(made_up: MadeUpLab, tmp_path: Path):
    made_up.add("a-1", "return Finding(holds=True, measured='', values={'rate': float('nan')})")
    options = LabOptions(ids=("a-1",), quick=True, folder=tmp_path)
    (result,) = run_experiments(options, quiet)
    assert result["failed"]
    assert "JSON" in result["reason"]


def test_a_set_goes_on_where_it_was_interrupted_and_fails_anew(made_up: MadeUpLab, tmp_path: Path):
    body = """
    with (setting.folder / "ran").open("a") as ran:
        ran.write("{name} ")
    if {fails} and (setting.folder / "ran").read_text().count("{name}") == 1:
        os._exit(3)
    return Finding(holds=True, measured="done")
    """
    for name, fails in (("a-1", False), ("b-2", True), ("c-3", False)):
        made_up.add(name, body.format(name=name, fails=fails))
    options = LabOptions(ids=("a-1", "b-2", "c-3"), quick=True, folder=tmp_path / "data")
    interrupted: Iterator[dict[str, Any]] = run_experiments(options, quiet, tmp_path / "kept.jsonl")
    assert [next(interrupted)["verdict"] for _ in range(2)] == ["holds", "failed"]
    interrupted.close()  # type: ignore[attr-defined]
    again = list(run_experiments(options, quiet, tmp_path / "kept.jsonl"))
    assert [result["verdict"] for result in again] == ["holds"] * 3
    assert (tmp_path / "data" / "ran").read_text().split() == ["a-1", "b-2", "b-2", "c-3"]


def test_what_could_not_be_measured_is_no_verdict_on_the_claim_and_is_tried_again(
    made_up: MadeUpLab, tmp_path: Path
):
    made_up.add(
        "a-1",
        """
        if not (setting.folder / "tool").exists():
            return Finding.not_measured("there is no tool here")
        return Finding(holds=True, measured="done")
        """,
    )
    options = LabOptions(ids=("a-1",), quick=True, folder=tmp_path)
    (told,) = run_experiments(options, quiet, tmp_path / "kept.jsonl")
    answer = ("not measured", None, False, "there is no tool here")
    assert (told["verdict"], told["holds"], told["failed"], told["reason"]) == answer
    (tmp_path / "tool").touch()
    (told,) = run_experiments(options, quiet, tmp_path / "kept.jsonl")
    assert told["verdict"] == "holds"


def test_progress_reaches_from_nothing_to_all(made_up: MadeUpLab, tmp_path: Path):
    made_up.add("a-1", HOLDS)
    made_up.add("b-2", HOLDS)
    told: list[tuple[str, float]] = []
    options = LabOptions(ids=("a-1", "b-2"), quick=True, folder=tmp_path)
    list(run_experiments(options, lambda text, share: told.append((text, share))))
    assert told == [
        ("a-1: starting", 0.0), ("a-1: counting", 0.25), ("b-2: starting", 0.5), ("b-2: counting", 0.75),
    ]  # fmt: skip


def test_an_unknown_experiment_is_named_with_the_nearest(made_up: MadeUpLab, tmp_path: Path):
    made_up.add("mesh-5", HOLDS)
    done = run(tmp_path, "mesh-6")
    assert isinstance(done.exception, SpecError)
    assert "did you mean 'mesh-5'" in str(done.exception)


def test_the_list_shows_every_claim(made_up: MadeUpLab):
    made_up.add("a-1", HOLDS, claim="the rate rises with memory")
    assert "the rate rises with memory" in CliRunner().invoke(lab, ["list"]).output
    told = json.loads(CliRunner().invoke(lab, ["list", "--json"]).output)
    assert [(one["id"], one["claim"]) for one in told] == [("a-1", "the rate rises with memory")]
