"""Rows of a change feed keep their operation through `tm.enrich`: beside every master row they meet, and while they are parked."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import tidemill as tm
from tidemill.spark import parking_lot

OPERATIONS = {
    "op": ("insert", "update_before", "update_after", "delete"),
    "_change_type": ("insert", "update_preimage", "update_postimage", "delete"),  # as a Delta feed says it
}
KEYS, CHANGES = 4_000, 9_000
PRODUCTS = pa.table(
    {
        "product_id": np.concatenate([np.arange(KEYS), np.arange(0, KEYS, 3), np.arange(0, KEYS, 6)]),
        "name": [f"a product with the name {number}" for number in range(KEYS + KEYS // 3 + KEYS // 6 + 2)],
    }
)
"""A key of three has two rows, a key of six three of them."""


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> tm.MasterData:
    place = tmp_path_factory.mktemp("master") / "products"
    return tm.MasterData.build(PRODUCTS, key="product_id", path=place)


def changes_of(column: str) -> pa.Table:
    """A sale has its life in several changes, so the same sale and key come with one operation after the other."""
    random = np.random.default_rng(17)
    sale = np.sort(random.integers(0, CHANGES // 3, CHANGES))
    popular = random.integers(0, 40, CHANGES // 3)
    of_sale = np.where(random.random(CHANGES // 3) < 0.5, popular, random.integers(-50, KEYS, CHANGES // 3))
    key = pa.array(of_sale[sale], mask=sale % 97 == 0)
    operations = np.array(OPERATIONS[column])[random.integers(0, 4, CHANGES)]
    return pa.table({"sale": sale, "product_id": key, column: operations, "_commit_version": sale // 500})


def as_bag(rows: DataFrame) -> Counter[Any]:
    return Counter(tuple(row) for row in rows.collect())


@pytest.mark.parametrize("column", OPERATIONS)
@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("algorithm", ["moij", "tide"])
def test_every_row_keeps_its_operation(
    spark: SparkSession, products: tm.MasterData, tmp_path: Path, algorithm: str, how: Any, column: str
) -> None:
    changes = spark.createDataFrame(changes_of(column)).repartition(2)
    ours = tm.enrich(
        changes, products, on="product_id", how=how, algorithm=algorithm, memory="8 MB", hot_rows=tmp_path
    )
    theirs = changes.join(spark.createDataFrame(PRODUCTS), on="product_id", how=how).select(*ours.columns)
    assert ours.columns == ["sale", "product_id", column, "_commit_version", "name"]
    found = as_bag(ours)
    assert found == as_bag(theirs)
    assert {row[2] for row in found} == set(OPERATIONS[column])
    assert found.total() > CHANGES, "some changes meet several master rows"


@pytest.mark.parametrize("column", OPERATIONS)
def test_a_parked_change_comes_back_with_its_operation(
    spark: SparkSession, tmp_path: Path, column: str
) -> None:
    insert, before, after, delete = OPERATIONS[column]
    master = tm.MasterData.build(
        pa.table({"product_id": [1], "name": ["tea"]}), key="product_id", path=tmp_path / "master"
    )
    sold = [
        (10, 1, insert),
        (11, 2, insert),
        (11, 2, before),
        (11, 2, after),
        (12, 2, delete),
        (13, 3, before),
    ]
    (tmp_path / "in").mkdir()
    rows = [dict(zip(("sale", "product_id", column), row, strict=True)) for row in sold]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / "changes.parquet")
    parking = tm.Parking(tmp_path / "parking", master, on="product_id")
    joined: list[Any] = []

    def deliver(batch: DataFrame, batch_id: int) -> None:
        parking.write(batch, batch_id)
        joined.extend(tuple(row) for row in tm.split_fates(batch).joined.collect())

    def run() -> None:
        stream = spark.readStream.schema(f"sale bigint, product_id bigint, {column} string")
        changes = tm.with_parked(stream.parquet(str(tmp_path / "in")), parking)
        writing = tm.enrich(
            changes, master, on="product_id", late="park", parking=parking, memory="8 MB", hot_rows=tmp_path / "hot"
        ).writeStream.foreachBatch(deliver)  # fmt: skip
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writing.trigger(availableNow=True).start().awaitTermination()

    run()
    assert joined == [(10, 1, insert, "tea")]
    assert parking.counts().waiting == 5
    time.sleep(parking_lot.FIRST_LOOKUP_US / 1e6)
    master = master.apply(
        pa.table({"product_id": [2, 2], "name": ["milk", "oat"], "_op": ["insert", "insert"]})
    )
    run()
    came_back = Counter((*row, name) for row in sold if row[1] == 2 for name in ("milk", "oat"))
    assert Counter(joined[1:]) == came_back
    assert parking.counts().waiting == 1
