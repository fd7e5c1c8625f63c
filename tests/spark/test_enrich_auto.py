"""`tm.enrich` with algorithm="auto" and memory="auto": the models choose, `tm.explain` says why, rows stay the same."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

import tidemill as tm
from tidemill.core.errors import SpecError
from tidemill.join.conditions import Between
from tidemill.model.calibration import Calibration
from tidemill.model.work import COSTS_TODAY
from tidemill.spark import auto

ROWS = 50_000


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Any:
    ids = np.arange(ROWS)
    rows = pa.table({"product_id": ids, "name": [f"tea number {i:06}" + "." * 80 for i in ids]})
    return tm.MasterData.build(rows, key="product_id", path=tmp_path_factory.mktemp("m") / "products")


@pytest.fixture
def sales(spark: SparkSession) -> DataFrame:
    return spark.range(0, 2 * ROWS, 7, numPartitions=2).withColumnRenamed("id", "product_id")


def explained(*arguments: Any, **named: Any) -> Any:
    told = tm.explain(*arguments, console=Console(file=io.StringIO(), width=140), **named)
    return told, told.lookups[0]


def test_auto_says_why(sales: DataFrame, products: tm.MasterData) -> None:
    _, lookup = explained(sales, products, on="product_id", memory="16 MB")
    assert lookup.algorithm in auto.CANDIDATES
    assert "rows/s predicted" in lookup.why
    assert "Zipf 1 assumed" in lookup.why
    _, lookup = explained(sales, products, on="product_id", memory="16 MB", zipf=0.0)
    assert "Zipf 0 as told" in lookup.why


def test_a_tie_goes_to_tide(sales: DataFrame, products: tm.MasterData) -> None:
    """All of the master data fits into the hot rows: whoever has some is as fast."""
    _, lookup = explained(sales, products, on="product_id", memory="256 MB")
    assert lookup.algorithm == "tide"


def test_memory_follows_the_rate(
    sales: DataFrame, products: tm.MasterData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "_LEAST_BYTES", 1_000_000)
    needs = []
    for rate in (100_000, 900_000):
        told, lookup = explained(
            sales, products, on="product_id", memory="auto", rate=rate, zipf=0.5, algorithm="tide"
        )
        assert told.memory_bytes == lookup.memory_bytes
        assert told.workers == 2
        needs.append(told.memory_bytes)
    assert needs[0] < needs[1] < 64e6


def test_a_rate_out_of_reach_is_refused_with_the_nearest(sales: DataFrame, products: tm.MasterData) -> None:
    with pytest.raises(SpecError, match="no memory gives") as refusal:
        tm.enrich(sales, products, on="product_id", memory="auto", rate=1e9)
    assert 1e5 < refusal.value.most_rows_per_s < 1e6  # of one worker


def test_wishes_that_do_not_go_together_are_refused(sales: DataFrame, products: tm.MasterData) -> None:
    with pytest.raises(SpecError, match="without a rate"):
        tm.enrich(sales, products, on="product_id", memory="auto")
    with pytest.raises(SpecError, match="leave one of them open"):
        tm.enrich(sales, products, on="product_id", memory="16 MB", rate=1000)
    condition = Between("product_id", "product_id", "product_id")
    with pytest.raises(SpecError, match="with a condition"):
        tm.enrich(sales, products, condition=condition, memory="auto", rate=1000, columns=["name"])


def test_rows_are_those_of_any_join(
    sales: DataFrame, products: tm.MasterData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "CANDIDATES", ("moij",))
    wishes: dict[str, Any] = {"on": "product_id", "memory": "auto", "rate": 200_000, "hot_rows": tmp_path}
    _, lookup = explained(sales, products, **wishes)
    assert lookup.algorithm == "moij"
    found = tm.enrich(sales, products, **wishes)
    assert found.count() == sales.count()
    assert found.where("name IS NOT NULL").count() == sales.where(f"product_id < {ROWS}").count()


def test_several_masters_share_the_time(
    sales: DataFrame, products: tm.MasterData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "CANDIDATES", ("tide",))
    monkeypatch.setattr(auto, "_LEAST_BYTES", 1_000_000)
    one, _ = explained(sales, products, on="product_id", memory="auto", rate=250_000, zipf=0.5)
    lookup = tm.Lookup(master=products, on="product_id", prefix="p_")
    two, _ = explained(
        sales, [lookup, tm.Lookup(master=products, on="product_id", prefix="q_")], memory="auto", rate=250_000, zipf=0.5
    )  # fmt: skip
    assert two.memory_bytes > 2 * one.memory_bytes


def test_costs_are_those_that_were_measured_or_those_stated(products: tm.MasterData) -> None:
    by_name, source = auto.costs_of(products)
    assert by_name("tide").read == COSTS_TODAY.read
    assert (
        by_name("tide").stream_row_seconds > COSTS_TODAY.stream_row_seconds
    )  # rows move between Java and Python
    assert "tidemill calibrate" in source
    slow = replace(COSTS_TODAY, output_row_seconds=1e-3)
    file = products.path / auto.FILE_NAME
    file.write_text(
        Calibration(
            measured_at="2026-11-16T08:00:00",
            store=str(products.identity),
            master_row_bytes=products.row_bytes,
            page_bytes=16_384,
            by_family={"scan": COSTS_TODAY, "lookup": COSTS_TODAY, "rows": slow},
            device_bytes_per_s={},
        ).to_json()
    )
    try:
        by_name, source = auto.costs_of(products)
    finally:
        file.unlink()
    assert by_name("tide").output_row_seconds == 1e-3
    assert by_name("hybrid").output_row_seconds == COSTS_TODAY.output_row_seconds
    assert source == "measured 2026-11-16T08:00:00"
