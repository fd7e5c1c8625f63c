"""Versions from a DataFrame: its tasks fold them, and what all of them refuse is counted together."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tidemill.core.errors import SpecError
from tidemill.master import MasterData
from tidemill.spark import master_build

PAIR = ("since", "until")


@pytest.fixture(autouse=True)
def several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_build, "_ROWS_OF_A_FILE", 200)


def prices(spark: SparkSession, seconds: int = 1) -> DataFrame:
    """900 versions of 300 keys, in no order."""
    return spark.range(900).selectExpr(
        "concat('key ', id * 7 % 300) AS sku",
        "timestamp_seconds(id DIV 300) AS since",
        f"timestamp_seconds(id DIV 300 + {seconds}) AS until",
        "id AS x",
    )


def versions(master: MasterData) -> list[str]:
    assert master.history is not None
    flat = [master.history.flat(page).drop_columns("_code") for page in master.scan()]
    return sorted(repr(row) for batch in flat for row in batch.to_pylist())


def test_a_store_from_a_dataframe_has_the_versions_of_one_from_arrow(spark: SparkSession, tmp_path: Path):
    rows = prices(spark)
    from_spark: Any = MasterData.build(rows, key="sku", path=tmp_path / "spark", history=PAIR)
    from_arrow = MasterData.build(rows.toArrow(), key="sku", path=tmp_path / "arrow", history=PAIR)
    assert len(from_spark.manifest.files) > 1
    assert from_spark.rows == from_arrow.rows == 300
    assert from_spark.history.schema.names == ["since", "until", "x"]
    assert len(versions(from_spark)) == 900
    assert versions(from_spark) == versions(from_arrow)


def test_what_the_tasks_refuse_is_counted_together(spark: SparkSession, tmp_path: Path):
    with pytest.raises(SpecError, match="600 of 900 versions begin before") as error:
        MasterData.build(prices(spark, seconds=2), key="sku", path=tmp_path, history=PAIR)
    assert (error.value.code, error.value.versions, len(error.value.keys)) == ("overlapping_versions", 600, 3)
    assert not list((tmp_path / "versions").iterdir())
