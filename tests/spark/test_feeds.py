"""A stream of change rows makes versions of a master store, a batch once, whatever is run again."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tidemill.core.errors import SpecError
from tidemill.master import MasterData
from tidemill.master.feeds import Fed
from tidemill.spark.feeds import apply_changes

SCHEMA = "id long, n string, price decimal(10,2), seen timestamp, _op string, at long"


@pytest.fixture
def store(tmp_path: Path, spark: SparkSession) -> Path:
    rows = spark.sql(
        "select id, concat('old ', id) n, cast(id as decimal(10,2)) price, timestamp'2024-01-01 10:00:00' seen "
        "from range(10)"
    )
    MasterData.build(rows, key="id", path=tmp_path / "store")
    return tmp_path / "store"


def put_file(folder: Path, number: int, rows: list[tuple[int, str | None, str, int]]) -> None:
    folder.mkdir(exist_ok=True)
    ids, ns, ops, times = zip(*rows, strict=True)
    columns = {
        "id": pa.array(ids, pa.int64()), "n": pa.array(ns, pa.string()),
        "price": pa.array([None] * len(rows), pa.decimal128(10, 2)),
        "seen": pa.array([0] * len(rows), pa.timestamp("us", "UTC")), "_op": ops, "at": times,
    }  # fmt: skip
    pq.write_table(pa.table(columns), folder / f"{number}.parquet")


def run(
    spark: SparkSession, store: Path, tmp_path: Path, checkpoint: str = "checkpoint"
) -> list[tuple[int, Fed]]:
    told: list[tuple[int, Fed]] = []
    stream = (
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "changes"))
    )
    query = (
        stream.writeStream.foreachBatch(
            apply_changes(store, order="at", on_batch=lambda number, fed: told.append((number, fed)))
        )
        .option("checkpointLocation", str(tmp_path / checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return told


def contents(store: Path) -> dict[int, str]:
    master = MasterData.open(store)
    return {row["id"]: row["n"] for row in master.read_batch(range(master.pages)).to_pylist()}


def test_batches_become_versions_and_a_batch_that_is_run_again_is_skipped(
    spark: SparkSession, store: Path, tmp_path: Path
):
    put_file(
        tmp_path / "changes", 1, [(1, "late", "update", 2), (1, "early", "update", 1), (2, None, "delete", 1)]
    )
    assert [(number, fed.how) for number, fed in run(spark, store, tmp_path)] == [(0, "applied")]
    put_file(
        tmp_path / "changes",
        2,
        [(50, "new", "insert", 1), (1, "late", "update_before", 3), (70, "late", "update_after", 3)],
    )
    assert [(number, fed.how) for number, fed in run(spark, store, tmp_path)] == [(1, "applied")]
    wanted = {**{n: f"old {n}" for n in (0, *range(3, 10))}, 50: "new", 70: "late"}
    assert contents(store) == wanted
    version = MasterData.open(store).version
    # As if the driver had died between the version and Spark's note that the batch is done.
    for note in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        note.unlink()
    again = run(spark, store, tmp_path)
    assert [(number, fed.how) for number, fed in again] == [(1, "already")]
    assert (contents(store), MasterData.open(store).version) == (wanted, version)
    (position,) = MasterData.open(store).manifest.positions.items()
    assert position[0].startswith("spark:")
    assert position[1] == 1


def test_a_new_checkpoint_is_a_new_feed(spark: SparkSession, store: Path, tmp_path: Path):
    put_file(tmp_path / "changes", 1, [(1, "x", "update", 1)])
    run(spark, store, tmp_path)
    assert run(spark, store, tmp_path, "another")[0][1].how == "applied"
    assert len(MasterData.open(store).manifest.positions) == 2


def test_outside_of_a_stream_a_name_is_asked_for(spark: SparkSession, store: Path):
    rows = spark.createDataFrame([(1, "x", None, None, "update", 1)], SCHEMA)
    with pytest.raises(SpecError, match="feed="):
        apply_changes(store)(rows, 0)
    apply_changes(store, feed="by hand")(rows, 0)
    assert contents(store)[1] == "x"
