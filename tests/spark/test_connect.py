"""Over Spark Connect master data is built, rows are enriched and watched as with a session of one's own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from tests.spark.test_clusters import logged, path_of_modules, waited_for

from tidemill.spark.java import use_java

pytest.importorskip("grpc", reason="Spark Connect needs grpcio and its kin")
pytestmark = pytest.mark.timeout(240)
PROGRAM = Path(__file__).with_name("connect_query.py")
PRODUCTS = pa.table(
    {"product_id": range(500), "name": [f"product {n}" for n in range(500)], "price": range(500)}
)


@pytest.fixture(scope="module", params=["server in the process", "server elsewhere"])
def server(request: pytest.FixtureRequest) -> str:
    where: str = request.param
    return where


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, server: str) -> Path:
    folder = tmp_path_factory.mktemp("connect")
    for name in ("products", "sales"):
        (folder / name).mkdir()
    pq.write_table(PRODUCTS, folder / "products" / "all.parquet")
    keys = np.random.default_rng(9).integers(0, 520, 3_000)
    for number in range(3):
        part = slice(number * 1000, number * 1000 + 1000)
        rows = pa.table({"id": np.arange(3_000)[part], "product_id": keys[part]})
        pq.write_table(rows, folder / "sales" / f"{number}.parquet")
    return folder


@pytest.fixture(scope="module")
def found(place: Path, server: str) -> dict[str, Any]:
    """What a process that has no other session found. The two kinds of session do not live in one."""
    # Spark's own word for "any free port": else two runs of the tests at a time would meet on the same one.
    told = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": "1"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")} | told
    with ExitStack() as ends:
        is_elsewhere = server == "server elsewhere"
        remote = ends.enter_context(started_server(place)) if is_elsewhere else "local[2]"
        command = [sys.executable, str(PROGRAM), str(place), remote]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    answer: dict[str, Any] = json.loads((place / "found.json").read_text())
    return answer


@contextmanager
def started_server(folder: Path) -> Iterator[str]:
    """A process of Spark's Connect server on loopback; yields where to reach it."""
    home, log = Path(pyspark.__file__).parent, folder / "server.log"
    environment = {
        "JAVA_HOME": str(use_java().home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOG_DIR": str(folder),
        "SPARK_PID_DIR": str(folder),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": path_of_modules(),
    }
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder / "scratch"),
    }
    start = [str(home / "sbin" / "start-connect-server.sh"), "--wait", "--master", "local[2]"]
    for key, value in settings.items():
        start += ["--conf", f"{key}={value}"]
    with logged(start, environment, log):
        yield "sc://" + waited_for(log, r"(?<=server started at: )127\.0\.0\.1:\d+")


@pytest.fixture(scope="module")
def expected(place: Path) -> list[list[Any]]:
    sales = pq.read_table(place / "sales").join(PRODUCTS, "product_id", join_type="left outer").sort_by("id")
    return [[row[name] for name in ("id", "product_id", "name", "price")] for row in sales.to_pylist()]


def test_the_session_is_one_of_connect(found: dict[str, Any]) -> None:
    assert found["kind"].startswith("pyspark.sql.connect")


def test_master_data_is_built_from_a_dataframe(found: dict[str, Any]) -> None:
    assert found["master_rows"] == len(PRODUCTS)


@pytest.mark.parametrize("way", ["batch", "stream", "foreach_batch"])
def test_rows_are_those_of_the_join(found: dict[str, Any], expected: list[list[Any]], way: str) -> None:
    assert found[way] == expected


def test_the_batches_of_a_stream_claim_their_version(found: dict[str, Any]) -> None:
    assert found["claims"] == 3


def test_a_watch_hears_of_every_batch(found: dict[str, Any], expected: list[list[Any]]) -> None:
    batches = [batch["lookups"][0] for batch in found["watched"]["batches"]]
    assert [batch["rows_in"] for batch in batches] == [1_000] * 3
    [total] = found["watched"]["totals"]
    assert (total["lookup"], total["versions"], total["master_rows"]) == ("store", [1], len(PRODUCTS))
    assert total["unmatched"] == sum(name is None for _, _, name, _ in expected) > 0
    assert total["hot_hits"] + total["disk_matches"] + total["unmatched"] == len(expected)


def test_explain_says_what_would_be_done(found: dict[str, Any]) -> None:
    told = found["explained"]
    [lookup] = told["lookups"]
    assert (lookup["lookup"], lookup["algorithm"], lookup["version"]) == ("store", "tide", 1)
    assert lookup["columns_added"] == ["name", "price"]
    divided = sum(lookup["shared_bytes"].values()) + told["workers"] * sum(lookup["worker_bytes"].values())
    assert 0.99 * 24e6 < divided <= 24e6
    assert "tm.watch" in told["observed"]
    assert "30 s" in told["refresh"]
    missing = {setting["key"] for setting in told["missing_settings"]}
    assert "spark.sql.execution.arrow.maxRecordsPerBatch" in missing, "a plain server has Spark's own"
