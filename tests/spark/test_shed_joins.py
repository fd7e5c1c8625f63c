"""Shedding before every kind of join: each row has the fate that the join gives it, now or later, once."""

import io
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from tests.spark.set_aside import SALES, Shop

import tidemill as tm
from tidemill.core.errors import BudgetError, SpecError
from tidemill.spark import parking_lot, shed

KEYS, ROOM_ROWS, ROWS = 40, 50, 200
PRODUCTS = pa.table(
    {
        "product_id": [key for key in range(KEYS // 2) for _ in range(2)],
        "name": [f"name {n}" for n in range(KEYS)],
    }
)
"""Two rows for each of the first keys; none for the others."""


def shop_of(spark: SparkSession, folder: Path, products: pa.Table = PRODUCTS, **wishes: Any) -> Shop:
    shop = Shop(spark, folder, products, memory="12 MB", tasks=2, **wishes)
    shop.shed = tm.Shed(folder / "lane", rows=ROOM_ROWS, memory="4 MB", quiet="1 h")
    return shop


@pytest.mark.parametrize(
    ("how", "results", "strategy"),
    [("inner", 2, "top"), ("semi", 1, "keep"), ("anti", 1, "keep")],
)
def test_every_join_gives_its_rows_once_all_have_come_back(
    spark: SparkSession, tmp_path: Path, how: str, results: int, strategy: str
) -> None:
    shop = shop_of(spark, tmp_path, how=how)
    shop.sell(number % KEYS for number in range(ROWS))
    shop.run()
    assert shop.reasons == {f"batch of more than {ROOM_ROWS} rows, {strategy}": ROWS - ROOM_ROWS}
    if how == "inner":  # TOPW knows who gives nothing: half of all rows have no match
        assert len(shop.joined) == 2 * ROOM_ROWS
    shop.until_all_came()
    is_known = how != "anti"
    wanted = {number: results for number in range(ROWS) if (number % KEYS < KEYS // 2) == is_known}
    assert Counter(row["id"] for row in shop.joined) == Counter(wanted)


def test_rows_are_shed_before_the_first_of_several_masters(spark: SparkSession, tmp_path: Path) -> None:
    shop = shop_of(spark, tmp_path)
    kinds = pa.table({"product_id": range(KEYS), "kind": [f"kind {key}" for key in range(KEYS)]})
    other = tm.MasterData.build(kinds, key="product_id", path=tmp_path / "kinds")
    shop.wishes |= {
        "master": [
            tm.Lookup(master=other, on="product_id"),
            tm.Lookup(master=shop.master, on="product_id", how="inner"),
        ],
        "on": None,
    }
    shop.sell(number % KEYS for number in range(ROWS))
    shop.run()
    assert shop.reasons == {f"batch of more than {ROOM_ROWS} rows, keep": ROWS - ROOM_ROWS}
    shop.until_all_came()
    found = Counter((row["id"], row["kind"]) for row in shop.joined)
    assert found == Counter({(n, f"kind {n % KEYS}"): 2 for n in range(ROWS) if n % KEYS < KEYS // 2})


def test_a_row_may_be_shed_and_then_park(spark: SparkSession, tmp_path: Path) -> None:
    shop = shop_of(spark, tmp_path, pa.table({"product_id": [0], "name": ["tea"]}))
    shop.parking = tm.Parking(tmp_path / "parking", shop.master, on="product_id")
    shop.sell(number % 2 for number in range(ROWS))
    shop.run()
    assert shop.shed is not None
    assert shop.shed.counts().waiting == ROWS - ROOM_ROWS
    assert 0 < shop.parking.counts().waiting < ROOM_ROWS  # shed rows look for no master row, so none is late
    shop.until_all_came()
    assert shop.parking.counts().waiting == ROWS // 2
    time.sleep(parking_lot.FIRST_LOOKUP_US / 1e6)
    shop.change("insert", 1, "milk")
    for _ in range(8):
        shop.run()
        shop.until_all_came()  # what comes back from the parking is a burst too
        if len(shop.joined) == ROWS:
            break
    assert Counter(shop.sales) == Counter((n, ("tea", "milk")[n % 2]) for n in range(ROWS))


@pytest.fixture
def sales(spark: SparkSession, tmp_path: Path) -> DataFrame:
    (tmp_path / "in").mkdir()
    return spark.readStream.schema(SALES).parquet(str(tmp_path / "in"))


def test_explain_says_what_would_be_shed_and_why(sales: DataFrame, tmp_path: Path) -> None:
    master = tm.MasterData.build(PRODUCTS, key="product_id", path=tmp_path / "master")
    lane = tm.Shed(tmp_path / "lane", rows=1001, memory="4 MB")
    out = io.StringIO()
    wishes: dict[str, Any] = {"on": "product_id", "memory": "16 MB", "shed": lane, "tasks": 2}
    console = Console(file=out, width=200)
    told = tm.explain(sales, master, console=console, **wishes)
    found = told.shed
    assert found is not None
    assert (found.strategy, found.capacity_rows, found.tasks, found.task_room_rows) == ("top", 1001, 2, 501)
    assert "many-to-many, 2 master rows a key" in found.why
    assert told.memory_bytes == 16_000_000
    assert told.lookups[0].memory_bytes == 12_000_000
    assert found.counts_bytes + told.workers * found.waiting_bytes <= found.memory_bytes == 4_000_000
    assert found.waiting_rows > 5000
    assert "many-to-many" in out.getvalue()
    assert not lane.path.exists()  # nothing is run
    semi = tm.explain(sales, master, console=console, how="semi", **wishes).shed
    assert semi is not None
    assert (semi.strategy, semi.counts_bytes) == ("keep", 0)
    assert semi.why.startswith("many-to-one, since how='semi' gives a row once at most")
    assert tm.explain(sales, master, console=console, on="product_id").shed is None


def test_what_cannot_be_is_refused_with_a_way_out(
    sales: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = tm.MasterData.build(PRODUCTS, key="product_id", path=tmp_path / "master")
    lookups = [tm.Lookup(master=master, on="product_id", prefix=name) for name in ("a_", "b_")]
    top = tm.Shed(tmp_path / "lane", rows=5, memory="4 MB", strategy="top")
    for wishes in ({"how": "anti", "on": "product_id", "master": master}, {"master": lookups}):
        with pytest.raises(SpecError, match='take strategy="auto"') as refused:
            tm.enrich(sales, **wishes, memory="16 MB", shed=top)
        assert refused.value.code == "shed_uncounted"
    with pytest.raises(BudgetError, match="give enrich more memory"):
        tm.enrich(sales, master, on="product_id", memory="4 MB", shed=top)
    with pytest.raises(SpecError, match="one master after the other"):
        tm.enrich(sales, lookups, late="reject", shed=top)
    monkeypatch.setattr(shed, "context_of", lambda _: None)
    with pytest.raises(SpecError, match="with a classic session"):
        tm.enrich(sales, master, on="product_id", memory="16 MB", shed=top)
