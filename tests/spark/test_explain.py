"""`tm.explain` says what `tm.enrich` would do, refuses what that refuses, and names what a session lacks."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
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
