"""A cluster gives the rows of local Spark, its executors share hot rows, and memory is counted by host."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

import tidemill as tm
from tidemill.spark.java import use_java
from tidemill.testing.zipf import Zipf

pytestmark = pytest.mark.timeout(240)
PROGRAM = Path(__file__).with_name("cluster_query.py")
KEYS, FILES, ROWS_OF_A_FILE = 5_000, 4, 4_000


class Place:
    """A store, a stream that asks for its keys, and the rows that must come out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "in").mkdir()
        keys = np.arange(KEYS)
        master = pa.table({"key": keys, "name": [f"product {key}" for key in keys], "value": keys * 3})
        tm.MasterData.build(master, key="key", path=folder / "store")
        asked = Zipf(KEYS + 100, exponent=1.1, seed=2, spread=True).draw(FILES * ROWS_OF_A_FILE)
        stream = pa.table({"id": np.arange(len(asked)), "key": asked})
        for number in range(FILES):
            part = stream.slice(number * ROWS_OF_A_FILE, ROWS_OF_A_FILE)
            pq.write_table(part, folder / "in" / f"{number}.parquet")
        self.expected = stream.join(master, "key", join_type="left outer").sort_by("id")

    def run(self, cluster: str, name: str, environment: dict[str, str], *how: str) -> dict[str, Any]:
        """What the query told; its rows are those of the join."""
        command = [sys.executable, str(PROGRAM), cluster, str(self.folder), name, *how]
        with ended_for_sure(command, environment | {"PYTHONPATH": path_of_modules()}) as query:
            _, errors = query.communicate(timeout=220)
        assert query.returncode == 0, errors[-3000:]
        found = pq.read_table(self.folder / f"{name}.parquet")
        assert found.select(self.expected.column_names).equals(self.expected)
        told: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        return told


def path_of_modules() -> str:
    """For workers that others start: where this very package lies."""
    return os.pathsep.join([str(Path(tm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])


@contextmanager
def ended_for_sure(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone afterwards, with all that it started."""
    process = subprocess.Popen(
        command, env=os.environ | environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            tree = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for child in tree:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        process.communicate()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("cluster"))


def assert_hot_rows_are_shared(told: dict[str, Any]) -> None:
    """Executors of one host map the same file: what one has read in the first batch serves both."""
    first, *_, last = told["told"]
    assert last["rows_in"] == ROWS_OF_A_FILE
    assert last["hot_hits"] > 0.7 * ROWS_OF_A_FILE
    assert last["pages_read"] <= first["pages_read"]


def test_a_local_cluster_gives_the_rows_of_the_join(place: Place) -> None:
    told = place.run("local-cluster[2,1,1024]", "local-cluster", {})
    assert (told["tasks"], told["of_a_host"]) == (2, 2), "both executors are on this host"
    assert_hot_rows_are_shared(told)


def test_a_query_made_before_the_executors_came_uses_and_reckons_with_all_of_them(place: Place) -> None:
    told = place.run("local-cluster[2,1,1024]", "at-once", {}, "at-once")
    assert told["unawaited"] == [2, 2], "what is promised counts"
    assert (told["tasks"], told["of_a_host"]) == (2, 2)
    rows = pq.read_table(place.folder / "at-once.parquet")
    assert set(rows["task"].to_pylist()) == {0, 1}, "the partitions were more"
    assert [batch["rows_in"] for batch in told["told"]] == [FILES * ROWS_OF_A_FILE]


def test_a_standalone_cluster_gives_the_rows_of_the_join(place: Place) -> None:
    with standalone_cluster(place.folder, workers=2) as master:
        told = place.run(master, "standalone", {})
    assert (told["tasks"], told["of_a_host"]) == (2, 2), "both executors are on this host"
    assert_hot_rows_are_shared(told)


@contextmanager
def standalone_cluster(folder: Path, workers: int) -> Iterator[str]:
    """A master and its workers on loopback, of one core each; yields where to reach it."""
    home = Path(pyspark.__file__).parent
    start = [str(home / "bin" / "spark-class")]
    environment = {
        "JAVA_HOME": str(use_java().home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": path_of_modules(),
    }
    with ExitStack() as ends:
        log = folder / "master.log"
        address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        run = [*start, "org.apache.spark.deploy.master.Master", *address]
        ends.enter_context(logged(run, environment, log))
        master = waited_for(log, r"spark://127\.0\.0\.1:\d+")
        for number in range(workers):
            shape = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}")]
            worker = [*start, "org.apache.spark.deploy.worker.Worker", *address, *shape, master]
            ends.enter_context(logged(worker, environment, folder / f"worker-{number}.log"))
        yield master


@contextmanager
def logged(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with ended_for_sure(["sh", "-c", f'exec "$@" >{log} 2>&1', "sh", *command], environment):
        yield


def waited_for(log: Path, pattern: str) -> str:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if log.exists() and (found := re.search(pattern, log.read_text())):
            return found[0]
        time.sleep(0.1)
    raise AssertionError(log.read_text())
