"""Over Spark Connect master data is built and rows are enriched as with a session of one's own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("grpc", reason="Spark Connect needs grpcio and its kin")
pytestmark = pytest.mark.timeout(240)
PROGRAM = Path(__file__).with_name("connect_query.py")
PRODUCTS = pa.table(
    {"product_id": range(500), "name": [f"product {n}" for n in range(500)], "price": range(500)}
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def found(place: Path) -> dict[str, Any]:
    """What a process that has no other session found. The two kinds of session do not live in one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    # Spark's own word for "any free port": else two runs of the tests at a time would meet on the same one.
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": "1"}
    command = [sys.executable, str(PROGRAM), str(place)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    answer: dict[str, Any] = json.loads((place / "found.json").read_text())
    return answer


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
