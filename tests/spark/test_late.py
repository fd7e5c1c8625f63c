"""Every late row has one fate, and keeps it when its batch is run again."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import current_timestamp

import tidemill as tm
from tidemill.core.errors import SpecError
from tidemill.core.units import parse_span_ms
from tidemill.spark.late import MATCHED_COLUMN, Late, check_late, late_output, split_fates
from tidemill.spark.parking import Parking

PRODUCTS = pa.table({"product_id": [1, 2], "name": ["tea", "milk"], "price": pa.array([3, 4], pa.int32())})


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> tm.MasterData:
    return tm.MasterData.build(PRODUCTS, key="product_id", path=tmp_path_factory.mktemp("master"))


def fates(spark: SparkSession, late: Late, parking: Parking | None = None) -> DataFrame:
    """Five rows as a left join with a mark gives them: matched, new, NULL key, waiting, past a deadline of 1 h."""
    now = datetime.now(UTC)
    rows = [
        (1, 1, None, "tea", 3, True),
        (2, 7, None, None, None, False),
        (3, None, None, None, None, False),
        (4, 8, now - timedelta(minutes=59), None, None, False),
        (5, 9, now - timedelta(minutes=61), None, None, False),
        (6, 2, now - timedelta(minutes=61), "milk", 4, True),
    ]
    schema = f"id int, product_id int, _parked_at timestamp, name string, price int, {MATCHED_COLUMN} boolean"
    enriched = spark.createDataFrame(rows, schema)
    return late_output(enriched, on="product_id", matched_as=MATCHED_COLUMN, late=late, parking=parking)


def as_dict(rows: DataFrame, *columns: str) -> dict[int, Any]:
    found = [row.asDict() for row in rows.collect()]
    return {row["id"]: tuple(row[name] for name in columns) for row in found}


def test_emit_leaves_the_rows_of_a_left_join_as_they_are(spark: SparkSession) -> None:
    emitted = fates(spark, "emit")
    assert emitted.columns == ["id", "product_id", "_parked_at", "name", "price"]
    assert emitted.count() == 6


def test_reject_tags_rows_without_a_match_and_says_why(spark: SparkSession) -> None:
    found = as_dict(fates(spark, "reject"), "_fate", "_reason")
    missing = ("rejected", "no master row for key product_id")
    assert found == {
        1: ("joined", None),
        2: missing,
        3: ("rejected", "NULL in key product_id"),
        4: missing,
        5: missing,
        6: ("joined", None),
    }


@pytest.mark.parametrize(
    ("then", "default", "last", "name"),
    [
        ("emit", None, "unmatched", None),
        ("reject", None, "rejected", None),
        ("default", {"name": "unknown", "price": 0}, "defaulted", "unknown"),
    ],
)
def test_parked_until_the_deadline_then_as_asked(
    spark: SparkSession,
    products: tm.MasterData,
    tmp_path: Path,
    then: Any,
    default: Any,
    last: str,
    name: Any,
) -> None:
    parking = Parking(tmp_path, products, on="product_id", deadline="1 h", then=then, default=default)
    rows = fates(spark, "park", parking)
    assert as_dict(rows, "_fate", "name") == {
        1: ("joined", "tea"),
        2: ("parked", None),
        3: (last, name),  # a NULL waits for nothing
        4: ("parked", None),
        5: (last, name),
        6: ("joined", "milk"),  # found after the deadline is found
    }
    reasons = as_dict(rows, "_reason")
    assert reasons[3] == ("NULL in key product_id",)
    assert reasons[5] == ("no master row for key product_id within 1 h",)
    since = {key: value for key, (value,) in as_dict(rows, "_parked_at").items()}
    assert abs((since[2] - datetime.now()).total_seconds()) < 60  # noqa: DTZ005 - Spark gives local time
    assert since[2] - since[4] > timedelta(minutes=58)  # the first time counts
    assert since[1] is None


def test_a_batch_falls_apart_by_fates(spark: SparkSession, products: tm.MasterData, tmp_path: Path) -> None:
    parking = Parking(tmp_path, products, on="product_id", then="reject")
    found = split_fates(fates(spark, "park", parking))
    assert [sorted(row["id"] for row in part.collect()) for part in found] == [[1, 6], [3, 5], [2, 4]]
    assert found.joined.columns == ["id", "product_id", "name", "price"]
    assert {"_reason", "_parked_at"} <= set(found.rejected.columns)
    with pytest.raises(SpecError, match="no column '_fate'"):
        split_fates(found.joined)


def test_wishes_that_cannot_be_are_refused(products: tm.MasterData, tmp_path: Path) -> None:
    parking = Parking(tmp_path, products, on="product_id")
    join: Any = {"on": "product_id", "master": products}
    check_late("park", "left", parking, **join, is_streaming=True)
    with pytest.raises(SpecError, match=r"waits for \['product_id'\]"):
        check_late("park", "left", parking, on="id", master=products, is_streaming=True)
    with pytest.raises(SpecError, match="without a place to park"):
        check_late("park", "left", None, **join, is_streaming=True)
    with pytest.raises(SpecError, match="no stream"):
        check_late("park", "left", parking, **join, is_streaming=False)
    with pytest.raises(SpecError, match="how='inner'"):
        check_late("reject", "inner", None, **join, is_streaming=True)
    with pytest.raises(SpecError, match="did you mean 'park'"):
        check_late("parkk", "left", parking, **join, is_streaming=True)
    with pytest.raises(SpecError, match="a parking with late='emit'"):
        check_late("emit", "left", parking, **join, is_streaming=True)
    with pytest.raises(SpecError, match="valid: emit, reject, default"):
        Parking(tmp_path, products, on="product_id", then="drop")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="together"):
        Parking(tmp_path, products, on="product_id", then="default")
    with pytest.raises(SpecError, match="not a span of time"):
        parse_span_ms("1 fortnight")
    with pytest.raises(SpecError, match=r"'nme'.*did you mean 'name'"):
        Parking(
            tmp_path, products, on="product_id", then="default", default={"nme": "?"}
        ).refuse_unknown_defaults(["id", "name"])


def test_a_rerun_of_a_batch_has_the_time_of_its_first_run(spark: SparkSession, tmp_path: Path) -> None:
    """Everything here hangs on it: two runs of a batch, and two actions in one, see one `current_timestamp`."""
    spark.range(3).coalesce(1).write.parquet(str(tmp_path / "in"))
    seen: list[set[datetime]] = []

    def keep(batch: DataFrame, _: int) -> None:
        for _ in range(2):
            seen.append({row["now"] for row in batch.collect()})
            time.sleep(0.01)
        if len(seen) == 2:
            raise RuntimeError("killed after its work, before its commit")

    def run() -> None:
        stream = spark.readStream.schema("id bigint").parquet(str(tmp_path / "in"))
        query = (
            stream.withColumn("now", current_timestamp())
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(Exception, match="killed after its work"):
        run()
    run()
    assert len(seen) == 4
    assert len(set.union(*seen)) == 1
