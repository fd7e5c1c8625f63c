"""`tidemill explain join`: every join has a line, and what `auto` takes is the best of them."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from tidemill.cli.explain_join import explain
from tidemill.core.errors import BudgetError, SpecError
from tidemill.model.catalog import MODELLED
from tidemill.model.tune import TIE_SHARE


def run(*arguments: Any) -> str:
    answer = CliRunner().invoke(
        explain, ["join", *(str(argument) for argument in arguments)], catch_exceptions=False
    )
    assert answer.exit_code == 0, answer.output
    return answer.output


def told(*arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return answer


def test_every_join_is_there_and_auto_takes_the_best():
    answer = told("--rows", 1_000_000, "--memory", "12 MB")
    joins = {join["algorithm"]: join for join in answer["joins"]}
    assert set(joins) == set(MODELLED)
    rates = [join["rows_per_s"] for join in answer["joins"]]
    assert rates == sorted(rates, reverse=True)
    taken = joins[answer["auto"]["algorithm"]]
    assert taken["rows_per_s"] >= (1 - TIE_SHARE) * rates[0]
    for join in joins.values():
        assert join["rows_per_s"] >= join["default_rows_per_s"] * 0.999  # the default is in the tuner's grid
        assert sum(join["memory_bytes"].values()) <= 12_000_000
        assert sum(join["seconds_per_row"].values()) >= 0.999 / join["rows_per_s"]  # more where reads overlap


def test_a_join_without_enough_memory_says_the_least_that_works():
    asked = ("--rows", 1_000_000, "--algorithms", "mesh,reduced_mesh")
    lines = {join["algorithm"]: join for join in told(*asked, "--memory", "400 kB")["joins"]}
    least = lines["mesh"]["least_bytes"]
    assert lines["mesh"]["rows_per_s"] is None
    assert f"({least:,} bytes)" in run(*asked, "--memory", "400 kB")
    enough, too_little = (told(*asked, "--memory", size)["joins"] for size in (least, least - 1))
    assert None not in [join["rows_per_s"] for join in enough]
    assert None in [join["rows_per_s"] for join in too_little]


def test_no_join_can_work():
    with pytest.raises(BudgetError, match="give at least"):
        run("--rows", 1_000_000, "--memory", "10 kB", "--algorithms", "mesh,inl")


def test_costs_decide_the_rate_and_skew_the_choice():
    asked = ("--rows", 1_000_000, "--memory", "12 MB", "--algorithms", "mesh,balanced")
    uniform, skewed = (told(*asked, "--zipf", zipf, "--costs", "2008") for zipf in (0, 1.25))
    assert (uniform["auto"]["algorithm"], skewed["auto"]["algorithm"]) == ("mesh", "balanced")
    today = told(*asked, "--zipf", 0)
    assert today["joins"][0]["rows_per_s"] > 5 * uniform["joins"][0]["rows_per_s"]


def test_the_table_says_why():
    shown = run("--rows", 1_000_000, "--memory", "12 MB", "--algorithms", "mesh,inl")
    assert "1,000,000 master rows of 120 B" in shown
    assert "mesh *" in shown
    assert "auto takes mesh" in shown


@pytest.mark.parametrize(
    ("option", "value"),
    [("--zipf", -1), ("--matched-share", 1.5), ("--rows-per-key", 0), ("--memory", "much")],
)
def test_options_that_make_no_sense(option: str, value: Any):
    options = {"--rows": 1000, "--memory": "12 MB", option: value}
    with pytest.raises(SpecError):
        run(*(part for pair in options.items() for part in pair))


def test_a_join_that_does_not_exist():
    with pytest.raises(SpecError, match="did you mean 'mesh'"):
        run("--rows", 1000, "--memory", "12 MB", "--algorithms", "mish")
