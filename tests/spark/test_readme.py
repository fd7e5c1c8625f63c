"""The Python that README and docs show runs as it stands."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

README = Path(__file__).parents[2] / "README.md"


def test_python_of_the_readme_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"product_id": [1, 2], "name": ["tea", "milk"]}), "products.parquet")
    names = {"sales": spark.createDataFrame([(7, 2), (8, 3)], "id bigint, product_id bigint")}
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, names)
    enriched = sorted(tuple(row) for row in names["enriched"].select("id", "product_id", "name").collect())
    assert enriched == [(7, 2, "milk"), (8, 3, None)]
