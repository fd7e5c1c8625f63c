"""The example of a declarative pipeline runs, and its table holds the rows of the join."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

import tidemill as tm
from tidemill.spark.java import use_java

pytest.importorskip("grpc", reason="declarative pipelines need Spark Connect")
pytest.importorskip("yaml", reason="declarative pipelines need pyyaml")
pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "declarative-pipeline"
PRODUCTS = pa.table(
    {"product_id": range(300), "name": [f"product {n}" for n in range(300)], "price": range(300)}
)


def run_pipeline(project: Path, data: Path) -> None:
    home = Path(pyspark.__file__).parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")} | {
        "JAVA_HOME": str(use_java().home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",  # any free port for the server
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(Path(tm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        "TIDEMILL_EXAMPLE_DATA": str(data),
    }
    settings = ["spark.driver.host=127.0.0.1", "spark.ui.enabled=false"]
    options = [word for setting in settings for word in ("--conf", setting)]
    command = [str(home / "bin" / "spark-pipelines"), "run", "--remote", "local[2]", *options]
    ran = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]


def test_the_table_of_the_pipeline_holds_the_rows_of_the_join(tmp_path: Path) -> None:
    project, data = tmp_path / "project", tmp_path / "data"
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    storage = f"storage: file://{tmp_path}/storage\n"
    lines = spec.read_text().splitlines(keepends=True)
    spec.write_text("".join(storage if line.startswith("storage:") else line for line in lines))
    tm.MasterData.build(PRODUCTS, key="product_id", path=data / "products")
    keys = np.random.default_rng(9).integers(0, 320, 2_000)
    sales = pa.table({"sale_id": np.arange(len(keys)), "product_id": keys})
    (data / "sales").mkdir()
    pq.write_table(sales, data / "sales" / "1.parquet")

    run_pipeline(project, data)

    table = pq.read_table(project / "spark-warehouse" / "enriched_sales")
    expected = sales.join(PRODUCTS, "product_id", join_type="left outer").sort_by("sale_id")
    assert table.select(expected.column_names).sort_by("sale_id").equals(expected)
