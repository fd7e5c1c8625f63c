"""`tm.explain` says what `tm.enrich` would do, refuses what that refuses, and names what a session lacks."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

import tidemill as tm
from tidemill.core.errors import BudgetError, SpecError
from tidemill.spark.explain_settings import missing_settings
from tidemill.spark.session import SETTINGS


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rows = pa.table({"product_id": np.arange(5000), "name": ["tea"] * 5000, "price": np.ones(5000)})
    return tm.MasterData.build(rows, key="product_id", path=tmp_path_factory.mktemp("m") / "products")


def explained(*arguments: Any, **named: Any) -> tuple[Any, str]:
    out = io.StringIO()
    told = tm.explain(*arguments, console=Console(file=out, width=140), **named)
    return told, out.getvalue()


def test_it_says_what_would_be_done(spark: SparkSession, products: tm.MasterData, tmp_path: Path) -> None:
    rows = spark.range(10).withColumnRenamed("id", "product_id")
    told, text = explained(
        rows, products, on="product_id", columns={"name": "product"}, memory="16 MB", refresh="30 s"
    )
    [lookup] = told.lookups
    assert (lookup.algorithm, lookup.version, lookup.master_rows) == ("tide", 1, 5000)
    assert lookup.columns_added == ["product"]
    assert lookup.columns_read == ["product_id", "name"]
    assert told.workers == 2
    assert told.missing_settings == ()
    divided = sum(lookup.shared_bytes.values()) + told.workers * sum(lookup.worker_bytes.values())
    assert 0.99 * 16e6 < divided <= 16e6
    assert "products" in text
    assert "none is missing" in text
    assert json.loads(json.dumps(told.as_dict()))["lookups"][0]["memory_bytes"] == 16_000_000


def test_memory_of_other_joins_is_divided_too(spark: SparkSession, products: tm.MasterData) -> None:
    rows = spark.range(10).withColumnRenamed("id", "product_id")
    for algorithm in ("moij", "mesh", "cache", "inl"):
        told, _ = explained(rows, products, on="product_id", memory="32 MB", algorithm=algorithm)
        assert told.lookups[0].why == "asked for"
        assert sum(told.lookups[0].worker_bytes.values()) <= 16e6


def test_it_refuses_what_enrich_refuses(spark: SparkSession, products: tm.MasterData) -> None:
    rows = spark.range(10).withColumnRenamed("id", "product_id")
    with pytest.raises(BudgetError, match="give at least"):
        explained(rows, products, on="product_id", memory="10 kB")
    with pytest.raises(SpecError, match="did you mean 'product_id'"):
        explained(rows, products, on="produkt_id")
    with pytest.raises(TypeError, match="memmory"):
        explained(rows, products, on="product_id", memmory="1 MB")


def stream_of(spark: SparkSession, folder: Path) -> DataFrame:
    spark.range(10).withColumnRenamed("id", "product_id").write.parquet(str(folder / "in"))
    return spark.readStream.schema("product_id bigint").parquet(str(folder / "in"))


def test_it_says_what_becomes_of_late_rows(
    spark: SparkSession, products: tm.MasterData, tmp_path: Path
) -> None:
    rows = stream_of(spark, tmp_path)
    asked: dict[str, Any] = {"on": "product_id", "memory": "16 MB", "late": "park"}
    member = {"name": "unknown"}
    parking = tm.Parking(
        tmp_path / "parking", products, on="product_id", deadline="2 h", then="default", default=member
    )
    told, text = explained(rows, products, parking=parking, **asked)
    assert told.late.fates == ["joined", "parked", "defaulted"]
    assert (told.late.deadline, told.late.path) == ("2 h", str(tmp_path / "parking"))
    assert told.late.columns_added == ["_fate", "_reason", "_parked_at"]
    assert told.lookups[0].columns_added == ["name", "price"]
    assert "2 h after a row was parked first; then rows leave with a default member: name='unknown'" in text
    assert json.loads(json.dumps(told.as_dict()))["late"]["default"] == member
    assert not (tmp_path / "parking").exists()
    told, text = explained(rows, products, **asked | {"late": "reject"})
    assert (told.late.fates, told.late.deadline) == (["joined", "rejected"], None)
    assert "rows are rejected with a reason at once" in text
    told, text = explained(rows, products, **asked | {"late": "emit"})
    assert told.late is None
    assert "Late rows" not in text


def test_it_refuses_late_rules_as_enrich_does(
    spark: SparkSession, products: tm.MasterData, tmp_path: Path
) -> None:
    stream = stream_of(spark, tmp_path)
    batch = spark.range(10).withColumnRenamed("id", "product_id")
    parking = tm.Parking(tmp_path / "parking", products, on="product_id")
    nobody = tm.Parking(
        tmp_path / "parking", products, on="product_id", then="default", default={"nme": "unknown"}
    )
    for rows, wrong, code in (
        (stream, {"late": "park"}, "no_parking"),
        (stream, {"parking": parking}, "parking_unused"),
        (stream, {"late": "reject", "how": "inner"}, "late_how"),
        (stream, {"late": "parked"}, "unknown_late"),
        (batch, {"late": "park", "parking": parking}, "park_batch"),
        (stream, {"late": "park", "parking": nobody}, "unknown_default_column"),
        (
            stream,
            {"late": "reject", "master": [tm.Lookup(master=products, on="product_id")]},
            "late_of_several",
        ),
    ):
        asked: Any = {"master": products, "on": "product_id", "memory": "16 MB", **wrong}
        with pytest.raises(SpecError) as refused:
            tm.enrich(rows, **asked)
        with pytest.raises(SpecError) as explained_too:
            tm.explain(rows, console=Console(file=io.StringIO()), **asked)
        assert (refused.value.code, str(refused.value)) == (code, str(explained_too.value))


def test_it_says_how_rows_are_dealt_out_where_partitions_are_few(
    spark: SparkSession, products: tm.MasterData
) -> None:
    rows = spark.range(10).withColumnRenamed("id", "product_id")
    cores = spark.sparkContext.master.removeprefix("local[").partition(",")[0].rstrip("]")
    told, _ = explained(rows, products, on="product_id", memory="16 MB")
    assert f"at most {cores}:" in told.tasks
    assert f"tasks={cores} deals the rows out" in told.tasks


def test_a_session_with_sparks_defaults_lacks_what_was_measured() -> None:
    plain = {"spark.master": "local[4]"}
    missing = {found.key: found for found in missing_settings(plain.get)}
    assert "280,000 -> 570,000" in missing["spark.sql.execution.arrow.maxRecordsPerBatch"].effect
    assert missing["spark.master"].wanted == "local[4,4]"
    assert "builder.config" in missing["spark.python.unix.domain.socket.enabled"].fix
    assert "spark.conf.set" in missing["spark.sql.adaptive.enabled"].fix


def test_our_own_session_lacks_nothing() -> None:
    ours = {setting.key: setting.value for setting in SETTINGS} | {"spark.master": "local[2,4]"}
    assert list(missing_settings(ours.get)) == []
    no_reuse = ours | {"spark.python.worker.reuse": "false"}
    assert [found.key for found in missing_settings(no_reuse.get)] == ["spark.python.worker.reuse"]
