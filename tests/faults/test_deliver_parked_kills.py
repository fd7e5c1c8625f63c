"""A driver that parks late rows and delivers the others, killed with -9 between its two writes: each row is written once.

Run as a program, this file is the driver; the test starts it until it ends of itself. The loader goes on meanwhile.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import tidemill as tm
from tidemill.core.block import encode_block
from tidemill.flow.branches import REASON_COLUMN, Rows, count_fates
from tidemill.load.client import LoaderClient
from tidemill.spark.parking_place import count_rows
from tidemill.staging.log import StagingLog

pytestmark = pytest.mark.timeout(290)
SOLD = Rows("sold", pa.schema([("id", pa.int64()), ("name", pa.string())]))
SALES, KNOWN, KEYS = 200, 10, 20


def run_driver(folder: Path, client: LoaderClient) -> None:
    from pyspark.sql.functions import lit

    from tidemill.spark.checkpoint import open_pipeline
    from tidemill.spark.session import start_session
    from tidemill.spark.sinks import deliver, tables_of
    from tidemill.spark.sources import read_log

    resumed = open_pipeline(client, "shop", folder / "checkpoint", tables_of([SOLD]))
    spark = start_session("deliver parked", cores=1, low_latency=True)
    master = tm.MasterData.open(folder / "master")
    parking = tm.Parking(folder / "parking", master, on="key")
    rows = tm.enrich(
        tm.with_parked(read_log(spark, folder / "log", start_entry=resumed.start_entry), parking),
        master,
        on="key",
        memory="8 MB",
        late="park",
        parking=parking,
        hot_rows=folder / "hot",
    )
    query = deliver(
        rows.withColumn(REASON_COLUMN, lit(None).cast("string")),
        [SOLD],
        client=client,
        resumed=resumed,
        count=count_fates,
        on_batch=lambda _: None,
        parking=parking,
    )
    query.processAllAvailable()
    query.stop()
    spark.stop()


def drive(folder: Path, *loader: str) -> int:
    """How the driver ended; its Java does not outlive it."""
    with (folder / "stderr").open("a") as log:
        driver = subprocess.Popen(
            [sys.executable, __file__, str(folder), *loader],
            env={**os.environ, "TIDEMILL_FAIL_AT": str(folder / "fail")},
            stderr=log,
            start_new_session=True,
        )
    code = driver.wait(timeout=120)
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    return code


def products(first: int, last: int) -> pa.Table:
    return pa.table({"key": range(first, last), "name": [f"name {key}" for key in range(first, last)]})


def test_killed_between_parking_and_commit_each_row_is_written_once(tmp_path: Path) -> None:
    from tests.load.harness import TOKEN, loader_in_thread  # not there for the driver

    (tmp_path / "fail").mkdir()
    master = tm.MasterData.build(products(0, KNOWN), key="key", path=tmp_path / "master")
    sales = pa.record_batch({"id": range(SALES), "key": [number % KEYS for number in range(SALES)]})
    with StagingLog.create(tmp_path / "log", sales.schema, max_bytes=10**8) as log:
        log.append([encode_block(sales, source="s", number=1, last_position=SALES)])
    with loader_in_thread(tmp_path) as loader:
        # The second one finds the rows of the batch parked, and dies before the others are committed.
        for point in ("after_parking", "before_commit"):
            (tmp_path / "fail" / point).touch()
            assert drive(tmp_path, loader.client.url, TOKEN) == -signal.SIGKILL, (
                tmp_path / "stderr"
            ).read_text()
            assert count_rows(tmp_path / "parking").parked == SALES // 2
            assert loader.client.status("shop")["last_batch_id"] is None
        more = products(KNOWN, KEYS)
        # All are known now: a batch that forgot that rows are parked would commit them, and they would come back too.
        master.apply(more.append_column("_op", pa.array(["insert"] * more.num_rows)))
        assert drive(tmp_path, loader.client.url, TOKEN) == 0, (tmp_path / "stderr").read_text()
        found = loader.client.sql("SELECT id, name FROM sold").to_pylist()
    waiting = count_rows(tmp_path / "parking").waiting
    ids = Counter(row["id"] for row in found)
    assert set(ids.values()) == {1}
    assert len(ids) == SALES - waiting
    assert ids.keys() >= {number for number in range(SALES) if number % KEYS < KNOWN}
    assert all(row["name"] == f"name {row['id'] % KEYS}" for row in found)


if __name__ == "__main__":
    run_driver(Path(sys.argv[1]), LoaderClient(*sys.argv[2:]))
