"""On a cluster rows are shed and come back as on local Spark: executors share the lane, and each row leaves once."""

import json
import sys
from pathlib import Path

import pytest
from tests.spark.shed_cluster_query import KEYS, ROOM_ROWS, ROWS
from tests.spark.test_clusters import ended_for_sure, path_of_modules

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).parents[2]


def test_a_local_cluster_sheds_and_brings_back(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.spark.shed_cluster_query",
        "local-cluster[2,1,1024]",
        str(tmp_path),
    ]
    modules = f"{ROOT}:{path_of_modules()}"
    with ended_for_sure(command, {"PYTHONPATH": modules}) as query:
        _, errors = query.communicate(timeout=220)
    assert query.returncode == 0, errors[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["at_first"] == ROOM_ROWS
    assert found["left"] == [[[number, f"name {number % KEYS}"], 1] for number in range(ROWS)]
