"""A stream of files through `tm.enrich`, some of whose rows are set aside and come back later."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import tidemill as tm

SALES = "id bigint, product_id bigint"


class Shop:
    """Sells products, and can be killed between setting rows aside and delivering a batch.

    Args:
        spark: Runs the query.
        folder: For everything.
        products: The master rows at first.
        wishes: Of `enrich`.
    """

    def __init__(self, spark: SparkSession, folder: Path, products: pa.Table, **wishes: Any) -> None:
        self.spark, self.folder = spark, folder
        self.master = tm.MasterData.build(products, key="product_id", path=folder / "master")
        self.wishes = {"on": "product_id", "hot_rows": folder / "hot", **wishes}
        self.shed: tm.Shed | None = None
        self.parking: tm.Parking | None = None
        self.fails_after_setting_aside = False
        self.joined: list[Any] = []
        """Rows that left, as they are."""
        self.rejected: list[tuple[int, str]] = []
        self.reasons: Counter[str | None] = Counter()
        """Of rows that were shed."""
        self.sold = 0

    def sell(self, keys: Iterable[int]) -> None:
        rows = list(enumerate(keys, self.sold))
        self.sold += len(rows)
        sales = self.spark.createDataFrame(rows, SALES)
        sales.coalesce(1).write.parquet(str(self.folder / "in"), mode="append")

    def change(self, op: str, key: int, name: str) -> None:
        """Insert or delete a product."""
        self.master = self.master.apply(pa.table({"product_id": [key], "name": [name], "_op": [op]}))

    def run(self) -> None:
        """One run over all that is there, and over rows that may come back."""
        rows = self.spark.readStream.schema(SALES).parquet(str(self.folder / "in"))
        wishes = {"master": self.master, **self.wishes}
        if self.parking is not None:
            rows = tm.with_parked(rows, self.parking)
            wishes |= {"late": "park", "parking": self.parking}
        if self.shed is not None:
            rows = tm.with_shed(rows, self.shed)
            wishes |= {"shed": self.shed}
        writing = tm.enrich(rows, **wishes).writeStream.foreachBatch(self._deliver)
        writing = writing.option("checkpointLocation", str(self.folder / "checkpoint"))
        writing.trigger(availableNow=True).start().awaitTermination()

    def _deliver(self, batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        for place in (self.parking, self.shed):
            if place is not None:
                place.write(batch, batch_id)
        if self.fails_after_setting_aside:
            self.fails_after_setting_aside = False
            raise RuntimeError("killed after setting aside")
        self.reasons.update(row["_reason"] for row in batch.where("_fate = 'shed'").collect())
        fates = tm.split_fates(batch)
        self.joined += fates.joined.collect()
        self.rejected += [(row["id"], row["_reason"]) for row in fates.rejected.collect()]
        batch.unpersist()

    @property
    def sales(self) -> list[tuple[int, str | None]]:
        """Who left with which name."""
        return [(row["id"], row["name"]) for row in self.joined]

    def until_all_came(self) -> None:
        """Runs without new rows, each after a while that counts as quiet, until nothing waits in the lane."""
        assert self.shed is not None
        self.shed.quiet_ms = 1
        for _ in range(8):
            if self.shed.counts().waiting == 0:
                return
            self.run()
        raise AssertionError(self.shed.counts())
