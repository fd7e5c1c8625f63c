"""`tm.enrich` called inside `foreachBatch`: a call a batch, and yet what is hot stays so and a re-run gives the same rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Observation, SparkSession

import tidemill as tm
from tidemill.spark.metrics_records import LookupMetrics, lookups_of
from tidemill.testing.zipf import Zipf

KEYS, FILES, ROWS_OF_A_FILE = 300_000, 5, 6_000


class Till:
    """A stream of files whose batches are enriched by the user's own function."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        keys = np.arange(KEYS)
        products = pa.table({"key": keys, "value": keys * 7, "text": np.char.zfill(keys.astype("U60"), 60)})
        self.master = tm.MasterData.build(products, key="key", path=folder / "products")
        self.keys = Zipf(KEYS + 500, exponent=1.2, seed=8, spread=True).draw(FILES * ROWS_OF_A_FILE)
        (folder / "in").mkdir()
        for number, part in enumerate(np.split(self.keys, FILES)):
            first = number * ROWS_OF_A_FILE
            rows = pa.table({"id": np.arange(first, first + ROWS_OF_A_FILE), "key": part})
            pq.write_table(rows, folder / "in" / f"{number}.parquet")
        self.batches: list[tuple[int, pa.Table]] = []
        self.told: list[LookupMetrics] = []
        self.after_batch: Any = lambda _: None

    def run(self) -> None:
        stream = self.spark.readStream.schema("id bigint, key bigint").option("maxFilesPerTrigger", 1)
        writing = stream.parquet(str(self.folder / "in")).writeStream.foreachBatch(self._enrich)
        writing = writing.option("checkpointLocation", str(self.folder / "checkpoint"))
        writing.trigger(availableNow=True).start().awaitTermination()

    def _enrich(self, batch: DataFrame, batch_id: int) -> None:
        seen = Observation("tidemill till")
        enriched = tm.enrich(
            batch, tm.MasterData.open(self.folder / "products"), on="key", columns=["value"], memory="8 MB",
            algorithm="tide", tasks=2, observe_as=seen, hot_rows=self.folder / "hot",
        )  # fmt: skip
        self.batches.append((batch_id, enriched.toArrow().sort_by("id")))
        self.told += lookups_of(seen.get)
        self.after_batch(batch_id)


@pytest.fixture
def till(spark: SparkSession, tmp_path: Path) -> Till:
    return Till(spark, tmp_path)


def test_rows_are_right_and_hot_ones_survive_from_batch_to_batch(till: Till) -> None:
    till.run()
    found = pa.concat_tables([rows for _, rows in till.batches]).sort_by("id")
    assert found["id"].to_pylist() == list(range(len(till.keys)))
    assert found["value"].to_pylist() == [key * 7 if key < KEYS else None for key in till.keys.tolist()]
    assert [told.rows_in for told in till.told] == [ROWS_OF_A_FILE] * FILES
    first, last = till.told[0], till.told[-1]
    assert last.disk_matches < 0.5 * first.disk_matches
    assert last.pages_read < 0.85 * first.pages_read


def test_a_batch_that_is_run_again_gives_the_same_rows(till: Till) -> None:
    """The master data has changed in between: the batch keeps the version that it began with, the next one goes over."""

    def change_and_die(batch_id: int) -> None:
        if batch_id == 1:
            till.after_batch = lambda _: None
            changes = pa.table(
                {
                    "key": np.arange(KEYS),
                    "value": np.arange(KEYS) * 9,
                    "text": [""] * KEYS,
                    "_op": ["update"] * KEYS,
                }
            )
            till.master.apply(changes)
            raise RuntimeError("killed before the batch was done")

    till.after_batch = change_and_die
    with pytest.raises(StreamingQueryException, match="killed before the batch was done"):
        till.run()
    till.run()
    assert [batch for batch, _ in till.batches] == [0, 1, 1, 2, 3, 4]
    assert [told.versions for told in till.told] == [(1,), (1,), (1,), (2,), (2,), (2,)]
    killed, again, after = (rows for _, rows in till.batches[1:4])
    assert again.equals(killed)
    assert after["value"].to_pylist() == [key * 9 if key < KEYS else None for key in after["key"].to_pylist()]
