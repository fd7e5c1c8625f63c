"""`tidemill master` as its users meet it, without the process around it."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from tidemill.cli.master import master
from tidemill.core.errors import SpecError
from tidemill.master import MasterData
from tidemill.spark.refresh import Refresh
from tidemill.spark.version_pin import claim_version


@pytest.fixture
def store(tmp_path: Path) -> Path:
    MasterData.build(pa.table({"id": [1, 2], "n": ["a", "b"]}), key="id", path=tmp_path / "store")
    return tmp_path / "store"


def run(*arguments: Any) -> str:
    answer = CliRunner().invoke(master, [str(argument) for argument in arguments], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_changes_are_applied_once_and_shown(store: Path, tmp_path: Path):
    claim_version(store, "q", 0, Refresh.parse("batch"))
    pq.write_table(pa.table({"id": [1], "n": ["A"], "_op": ["u"]}), tmp_path / "changes.parquet")
    command = ("apply", store, tmp_path / "changes.parquet", "--feed", "files", "--at", 4)
    assert run(*command) == "1 changes are version 2\n"
    assert run(*command) == "version 2 has these changes already\n"
    told = json.loads(run("show", store, "--json"))
    assert (told["current"], told["positions"]) == (2, {"files": 4})
    facts = [(v["version"], v["is_current"], v["rows"], v["claims"]) for v in told["versions"]]
    assert facts == [(1, False, 2, 1), (2, True, 2, 0)]
    assert 0 <= told["versions"][1]["age_seconds"] < 60
    assert "feed files is at 4" in run("show", store)


def test_a_store_follows_a_delta_table_and_a_folder(store: Path, tmp_path: Path):
    write_deltalake(tmp_path / "delta", pa.table({"id": [1, 9], "n": ["a", "z"]}))
    assert json.loads(run("follow", store, tmp_path / "delta", "--once", "--json"))["changes"] == 2
    assert "already" in run("follow", store, tmp_path / "delta", "--once")
    (tmp_path / "folder").mkdir()
    pq.write_table(pa.table({"id": [1], "n": ["a"]}), tmp_path / "folder" / "1.parquet")
    assert run("follow", store, tmp_path / "folder", "--once") == "1 changes are version 3\n"
    assert (
        run("follow", store, tmp_path / "folder", "--once") == "nothing has changed; version 3 is current\n"
    )


def test_changes_that_are_not_there(store: Path, tmp_path: Path):
    with pytest.raises(SpecError, match="cannot read Parquet"):
        run("apply", store, tmp_path / "nothing", "--feed", "files", "--at", 1)
