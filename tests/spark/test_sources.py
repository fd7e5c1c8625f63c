"""Every log entry reaches Spark once, in batches within the admission limit, and no changed offset is believed."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tidemill.core.block import encode_block
from tidemill.core.errors import StoreError
from tidemill.spark.sources import LogStreamReader, read_log
from tidemill.staging.log import StagingLog

SCHEMA = pa.schema([("id", pa.int64()), ("small", pa.int32()), ("at", pa.timestamp("us", tz="UTC"))])
ROWS_PER_BLOCK = 10


def add_blocks(log: StagingLog, first: int, last: int) -> None:
    for number in range(first, last):
        ids = range(number * ROWS_PER_BLOCK, (number + 1) * ROWS_PER_BLOCK)
        batch = pa.record_batch({"id": ids, "small": [None, *ids][:ROWS_PER_BLOCK], "at": ids}, schema=SCHEMA)
        log.append([encode_block(batch, source="s", number=number + 1, last_position=ids[-1])])


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with StagingLog.create(tmp_path / "log", SCHEMA, max_bytes=10**8) as log:
        add_blocks(log, 0, 12)
        yield log


class Collected:
    """Runs the stream until it has read all there is, and keeps what each batch held."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self.batches: dict[int, list[tuple[int, int]]] = {}

    def run(self, **options: int) -> None:
        def keep(batch: DataFrame, batch_id: int) -> None:
            self.batches[batch_id] = [(r["id"], r["_entry"]) for r in batch.select("id", "_entry").collect()]

        rows = read_log(self._spark, self._folder / "log", **options)
        query = (
            rows.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .start()
        )
        query.processAllAvailable()
        query.stop()

    @property
    def ids(self) -> list[int]:
        return [i for batch in self.batches.values() for i, _ in batch]


def test_every_row_once_with_its_entry_in_batches_within_the_limit(
    spark: SparkSession, log: StagingLog, tmp_path: Path
) -> None:
    collected = Collected(spark, tmp_path)
    collected.run(max_rows_per_batch=35)
    assert sorted(collected.ids) == list(range(120))
    assert [len(b) for b in collected.batches.values()] == [30, 30, 30, 30]
    assert all(entry == i // ROWS_PER_BLOCK for b in collected.batches.values() for i, entry in b)
    add_blocks(log, 12, 14)
    collected.run(max_rows_per_batch=35)
    assert sorted(collected.ids) == list(range(140))


def test_a_new_query_can_begin_at_an_entry(spark: SparkSession, log: StagingLog, tmp_path: Path) -> None:
    collected = Collected(spark, tmp_path)
    collected.run(start_entry=7)
    assert sorted(collected.ids) == list(range(70, 120))


def test_one_changed_digit_in_the_checkpoint_stops_the_query(
    spark: SparkSession, log: StagingLog, tmp_path: Path
) -> None:
    Collected(spark, tmp_path).run(max_rows_per_batch=60)
    offsets = tmp_path / "checkpoint" / "offsets"
    newest = max((f for f in offsets.iterdir() if f.name.isdigit()), key=lambda f: int(f.name))
    lines = newest.read_text().splitlines()
    offset = json.loads(lines[-1])
    lines[-1] = json.dumps(offset | {"entry": offset["entry"] - 3})
    newest.write_text("\n".join(lines))
    (offsets / f".{newest.name}.crc").unlink(missing_ok=True)
    add_blocks(log, 12, 14)
    with pytest.raises(StreamingQueryException, match="was changed or damaged"):
        Collected(spark, tmp_path).run()


def test_a_log_of_another_identity_is_refused(log: StagingLog, tmp_path: Path) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    with StagingLog.create(tmp_path / "other", SCHEMA, max_bytes=10**8) as other:
        add_blocks(other, 0, 12)
    schema = from_arrow_schema(SCHEMA)
    one, two = (LogStreamReader(tmp_path / name, schema, 100, 0, 2) for name in ("log", "other"))
    with pytest.raises(StoreError, match="speaks of entry 0 of log"):
        two.partitions(one.initialOffset(), one.initialOffset())


def test_large_batches_are_cut_into_tasks_that_cover_every_entry_once(
    log: StagingLog, tmp_path: Path
) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    import tidemill.spark.sources as sources

    reader = LogStreamReader(tmp_path / "log", from_arrow_schema(SCHEMA), 10**6, 0, 3)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "ROWS_PER_TASK", 20)
        cuts = [p.value for p in reader.partitions(start, end)]
    assert len(cuts) == 3
    assert [e for a, b in cuts for e in range(a, b)] == list(range(12))
