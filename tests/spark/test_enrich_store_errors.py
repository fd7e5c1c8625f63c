"""What goes wrong in the master store stops the batch, with the file and the page named; the batch can be run again."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tidemill as tm
from tidemill.master.layout import MANIFEST_FILE, version_folder

KEYS = 20_000
BLOCK_BYTES = 4096


def build(path: Path, value: int = 0) -> tm.MasterData:
    keys = np.arange(KEYS)
    names = pa.array(np.char.add("a product with the name ", keys.astype("U10")))
    return tm.MasterData.build(
        pa.table({"key": keys, "name": names, "value": keys + value}), key="key", path=path
    )


class Sales:
    """A stream of one batch that asks for every key, run as often as one likes from the same checkpoint."""

    def __init__(self, spark: SparkSession, master: tm.MasterData, folder: Path) -> None:
        self._folder = folder
        spark.range(KEYS).withColumnRenamed("id", "key").write.parquet(str(folder / "in"))
        stream = spark.readStream.schema("key bigint").parquet(str(folder / "in"))
        self._enriched = tm.enrich(stream, master, on="key", memory="8 MB", tasks=2, hot_rows=folder / "hot")
        self.found: list[pa.Table] = []

    def run(self) -> None:
        def keep(batch: DataFrame, _: int) -> None:
            self.found.append(batch.toArrow())

        writing = self._enriched.writeStream.foreachBatch(keep)
        writing = writing.option("checkpointLocation", str(self._folder / "cp")).trigger(availableNow=True)
        writing.start().awaitTermination()

    def refusal(self) -> str:
        """Text of the error with which the query ends; nothing was put out."""
        with pytest.raises(PySparkException) as refusal:
            self.run()
        assert self.found == []
        return str(refusal.value)

    def assert_whole(self) -> None:
        self.run()
        (rows,) = self.found
        assert rows.sort_by("key")["value"].to_pylist() == list(range(KEYS))


def pages_file(folder: Path) -> Path:
    return next((folder / "store").rglob("pages.bin"))


def flip_a_bit(file: Path) -> str:
    """What the error must name."""
    damaged = bytearray(file.read_bytes())
    damaged[12 * BLOCK_BYTES + 300] ^= 16
    file.write_bytes(damaged)
    return "fails its checksum"


def delete(file: Path) -> str:
    file.unlink()
    return "cannot open"


def cut(file: Path) -> str:
    file.write_bytes(file.read_bytes()[: -3 * BLOCK_BYTES])
    return "its manifest promises"


@pytest.mark.parametrize("hurt", [flip_a_bit, delete, cut])
def test_a_hurt_file_stops_the_batch_and_a_restored_one_lets_it_run_again(
    spark: SparkSession, tmp_path: Path, hurt: Callable[[Path], str]
) -> None:
    sales = Sales(spark, build(tmp_path / "store"), tmp_path)
    file = pages_file(tmp_path)
    good = file.read_bytes()
    what = hurt(file)
    refusal = sales.refusal()
    assert "StoreError" in refusal
    assert what in refusal
    assert str(file) in refusal
    assert "Next: restore the file" in refusal
    if hurt is flip_a_bit:
        at = next(p for p in range(10) if f"page {p} of {file}" in refusal)
        offset = int(refusal.split(f"page {at} of {file} at offset ")[1].split()[0])
        assert offset <= 12 * BLOCK_BYTES + 300 < offset + 16 * 1024, "the page that was hurt"
    file.write_bytes(good)
    sales.assert_whole()


def test_a_version_that_expired_under_a_dataframe_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    master = build(tmp_path / "store")
    keys = spark.range(KEYS).withColumnRenamed("id", "key")
    enriched = tm.enrich(keys, master, on="key", memory="8 MB", hot_rows=tmp_path / "hot")
    newer = master.apply(pa.table({"_op": ["d"], "key": [7], "name": [""], "value": [0]}))
    assert newer.expire(keep_last=1, older_than=timedelta(0)).versions == [master.version]
    with pytest.raises(PySparkException, match=r"version 1 of .*store has no .*: it was expired"):
        enriched.collect()


def test_a_claimed_version_that_was_removed_by_hand_is_not_replaced_by_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    master = build(tmp_path / "store")
    sales = Sales(spark, master, tmp_path)
    file, aside = pages_file(tmp_path), tmp_path / "aside"
    file.rename(aside)
    sales.refusal()  # now the batch has claimed its version, and must run again
    aside.rename(file)
    keys = np.arange(0, KEYS, 3)
    master.apply(pa.table({"_op": ["d"] * len(keys), "key": keys, "name": [""] * len(keys), "value": keys}))
    assert master.expire(keep_last=1, older_than=timedelta(0)).claimed == [1], "the claim holds it"
    manifest = version_folder(master.path, 1) / MANIFEST_FILE
    manifest.rename(aside)
    assert "has used version 1" in sales.refusal()
    aside.rename(manifest)
    sales.assert_whole()


def test_hot_rows_of_another_store_in_the_same_place_are_not_met(spark: SparkSession, tmp_path: Path) -> None:
    """Same path, same version number, other content."""
    for value in (0, 5):
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        keys = spark.range(KEYS).withColumnRenamed("id", "key")
        enriched = tm.enrich(
            keys, build(tmp_path / "store", value), on="key", memory="16 MB", hot_rows=tmp_path / "hot"
        )
        rows = {row["key"]: row["value"] for row in enriched.collect()}
        assert rows == {key: key + value for key in range(KEYS)}
