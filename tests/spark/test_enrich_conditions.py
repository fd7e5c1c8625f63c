"""`Near` and `Where` in Spark's workers give the rows of Spark's own join without equal keys, NULLs and all."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import tidemill as tm
from tidemill.join.conditions import Near, Where

SENSORS = pa.table(
    {
        "sensor": np.arange(300),
        "height": pa.array([None if n % 11 == 3 else n * 40 for n in range(300)], pa.int64()),
        "limit": pa.array([None if n % 13 == 5 else n * 0.5 for n in range(300)]),
        "place": [f"place {n} " + "." * 200 for n in range(300)],
    }
)


@pytest.fixture(scope="module")
def sensors(tmp_path_factory: pytest.TempPathFactory) -> tm.MasterData:
    place = tmp_path_factory.mktemp("master") / "sensors"
    return tm.MasterData.build(SENSORS, key="sensor", path=place, page_bytes=4096)


@pytest.fixture
def measured(spark: SparkSession) -> DataFrame:
    random = np.random.default_rng(12)
    values = random.integers(-200, 12_200, 500)
    weights = random.integers(-20, 320, 500) / 2
    rows = pa.table(
        {
            "id": np.arange(500),
            "value": pa.array(values, mask=values % 17 == 0),
            "weight": pa.array(weights, mask=values % 19 == 0),
        }
    )
    return spark.createDataFrame(rows).repartition(2)


def is_heavy(at_most: float) -> Where:
    """A condition that takes a value of its own to the workers."""

    def predicate(stream_rows: pa.RecordBatch, master_rows: pa.RecordBatch) -> np.ndarray:
        weight, limit = stream_rows.column("weight"), master_rows.column("limit")
        says = pc.and_kleene(pc.greater(weight, limit), pc.less(pc.subtract(weight, limit), at_most))
        return np.asarray(pc.fill_null(says, False).to_numpy(zero_copy_only=False))

    return Where(predicate, f"heavier by less than {at_most}")


def says_spark(name: str, rows: DataFrame, table: DataFrame) -> Column:
    by_name = {
        "near": sf.abs(rows["value"] - table["height"]) <= 60,
        "near fraction": sf.abs(rows["weight"] - table["limit"]) <= 1.5,
        "where": (rows["weight"] > table["limit"]) & (rows["weight"] - table["limit"] < 4.0),
    }
    return by_name[name]


CONDITIONS = {
    "near": Near("value", "height", 60),
    "near fraction": Near("weight", "limit", 1.5),
    "where": is_heavy(4.0),
}


def as_bag(rows: DataFrame) -> Counter[Any]:
    return Counter(tuple(row) for row in rows.collect())


@pytest.mark.parametrize(
    ("how", "algorithm"),
    [
        ("inner", "mesh"),
        ("left", "auto"),
        ("left", "reduced_mesh"),
        ("semi", "adaptive_mesh"),
        ("anti", "mesh"),
    ],
)
@pytest.mark.parametrize("name", CONDITIONS)
def test_rows_are_those_of_sparks_join(
    spark: SparkSession, measured: DataFrame, sensors: tm.MasterData, tmp_path: Path, name: str, how: Any, algorithm: str
) -> None:  # fmt: skip
    ours = tm.enrich(
        measured, sensors, condition=CONDITIONS[name], how=how, algorithm=algorithm, memory="12 MB", hot_rows=tmp_path
    )  # fmt: skip
    table = spark.createDataFrame(SENSORS)
    spark_how = {"semi": "left_semi", "anti": "left_anti"}.get(how, how)
    theirs = measured.join(table, says_spark(name, measured, table), spark_how).select(*ours.columns)
    found = as_bag(ours)
    assert found == as_bag(theirs)
    assert found.total() > (20 if how == "anti" else 200)
    if how == "inner":
        assert found.total() > 1.5 * len({row[0] for row in found}), "rows meet several master rows"
