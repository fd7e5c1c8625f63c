"""Fifty seeded cases, each with other keys, duplicates, NULLs, kind and algorithm: `tm.enrich` gives the rows of Spark's join."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import tidemill as tm
from tidemill.spark.lookup import HOSTED

CASES = 50
HOWS = ("inner", "left", "semi", "anti")
ALGORITHMS = ("auto", "tide", *HOSTED)
"""By turns, since `auto` would choose the same for nearly all; thirteen, so that each comes with several kinds of join."""


def key_values(kind: str, numbers: np.ndarray) -> "pa.Array[Any]":
    made: dict[str, Any] = {
        "long": lambda n: n * 7 - 30,
        "int": lambda n: n,
        "text": lambda n: f"key {n % 10} of {n}" + "x" * (n % 3),
        "date": lambda n: date(1970, 1, 1) + timedelta(days=n),
        "decimal": lambda n: Decimal(n) / 4,
        "timestamp": lambda n: datetime(2020, 1, 1, tzinfo=UTC) + timedelta(hours=n),
    }
    types: dict[str, Any] = {
        "long": pa.int64(),
        "int": pa.int32(),
        "text": pa.string(),
        "date": pa.date32(),
        "decimal": pa.decimal128(12, 2),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    return pa.array([made[kind](int(n)) for n in numbers], types[kind])


def with_nulls(values: "pa.Array[Any]", random: np.random.Generator, share: float) -> "pa.Array[Any]":
    hidden = pa.array(random.random(len(values)) < share)
    return pa.compute.if_else(hidden, pa.scalar(None, values.type), values)


def case(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    kinds = list(
        random.choice(["long", "int", "text", "date", "decimal", "timestamp"], random.integers(1, 3))
    )
    rows, keys = int(random.integers(0, 600)), int(random.integers(1, 400))
    of_master = random.integers(0, keys, rows)
    if random.random() < 0.5:
        of_master = np.unique(of_master)
    of_stream = random.integers(-20, keys + 20, int(random.integers(0, 900)))
    if random.random() < 0.4:
        of_stream[random.random(len(of_stream)) < 0.9] = random.integers(0, keys)
    master = {f"k{i}": key_values(kind, of_master) for i, kind in enumerate(kinds)}
    master["name"] = with_nulls(pa.array([f"row {i}" for i in range(len(of_master))]), random, 0.2)
    master["n"] = pa.array(np.arange(len(of_master)))
    stream: dict[str, Any] = {"id": pa.array(np.arange(len(of_stream)))}
    for i, kind in enumerate(kinds):
        stream[f"s{i}"] = with_nulls(key_values(kind, of_stream), random, 0.1)
    return {
        "master": pa.table(master),
        "stream": pa.table(stream),
        "on": {f"s{i}": f"k{i}" for i in range(len(kinds))},
        "how": HOWS[seed % 4],
        "algorithm": ALGORITHMS[seed % len(ALGORITHMS)],
        "partitions": int(random.integers(1, 4)),
    }


def as_bag(rows: DataFrame) -> Counter[Any]:
    return Counter(tuple(row) for row in rows.collect())


@pytest.mark.parametrize("seed", range(CASES))
def test_rows_are_those_of_sparks_join(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    wanted = case(seed)
    on, how = wanted["on"], wanted["how"]
    master = tm.MasterData.build(wanted["master"], key=tuple(on.values()), path=tmp_path / "master")
    stream = spark.createDataFrame(wanted["stream"]).repartition(wanted["partitions"])
    ours = tm.enrich(
        stream, master, on=on, how=how, memory="12 MB", algorithm=wanted["algorithm"], hot_rows=tmp_path / "hot"
    )  # fmt: skip
    table = spark.createDataFrame(wanted["master"])
    met = [stream[theirs] == table[key] for theirs, key in on.items()]
    spark_how = {"semi": "left_semi", "anti": "left_anti"}.get(how, how)
    theirs = stream.join(table, met, spark_how).select(*ours.columns)
    assert as_bag(ours) == as_bag(theirs)
