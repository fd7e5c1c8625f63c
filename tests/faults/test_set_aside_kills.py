"""A stream with bursts and late master rows, killed in the worst places: each row leaves once, parked and shed ones too.

Run as a program, this file is the query; the test starts it, kills it and starts it again while rows arrive. One stream
sets rows aside for both reasons: a row may be shed, come back, park and come back again, and Spark starts six times, not nine.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemill as tm
from tidemill.spark.parking_place import ParkingCounts, count_rows

pytestmark = pytest.mark.timeout(290)

KEYS = 100
KNOWN_AT_FIRST = 40
NEVER_THERE = 10
ROWS_PER_FILE = 60
ROOM_ROWS = 40
DEADLINE = "15 s"


def run_query(folder: Path) -> None:
    from pyspark.sql import DataFrame

    from tidemill.spark.session import start_session

    spark = start_session("set aside", cores=1, low_latency=True)
    master = tm.MasterData.open(folder / "master")
    parking = tm.Parking(folder / "parking", master, on="key", deadline=DEADLINE, then="reject")
    shed = tm.Shed(folder / "lane", rows=ROOM_ROWS, goal="sample", memory="2 MB", quiet="500 ms")

    def deliver(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        parking.write(batch, batch_id)
        shed.write(batch, batch_id)
        leaving = batch.where("_fate not in ('parked', 'shed')").selectExpr(
            "id", "_fate", "name", "_parked_at is not null", "_shed_at is not null"
        )
        rows = sorted(list(row) for row in leaving.collect())
        batch.unpersist()
        write_once(folder / "out", batch_id, rows)

    stream = spark.readStream.schema("id bigint, key bigint").option("maxFilesPerTrigger", 1)
    enriched = tm.enrich(
        tm.with_shed(tm.with_parked(stream.parquet(str(folder / "in")), parking), shed),
        master,
        on="key",
        memory="10 MB",
        late="park",
        parking=parking,
        shed=shed,
        hot_rows=folder / "hot",
    )
    writer = enriched.writeStream.foreachBatch(deliver)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


def write_once(out: Path, batch_id: int, rows: list[Any]) -> None:
    """A sink that takes a batch once; a re-run must bring the very same rows."""
    file = out / f"{batch_id}.json"
    if file.exists():
        (out / f"{batch_id}.again").write_text(json.dumps({"same": json.loads(file.read_text()) == rows}))
        return
    aside = out / f".{batch_id}"
    aside.write_text(json.dumps(rows))
    aside.rename(file)


class Rig:
    """Starts, kills, feeds and counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("in", "out", "fail"):
            (folder / name).mkdir()
        self.master = tm.MasterData.build(
            self.rows_of(range(KNOWN_AT_FIRST)), key="key", path=folder / "master"
        )
        self.arrived = KNOWN_AT_FIRST
        self.sold = 0
        self.files = 0
        self.dice = np.random.default_rng(5)
        self.query: subprocess.Popen[bytes] | None = None

    @staticmethod
    def rows_of(keys: range) -> pa.Table:
        return pa.table({"key": list(keys), "name": [f"name {key}" for key in keys]})

    def start(self) -> None:
        environment = {**os.environ, "TIDEMILL_FAIL_AT": str(self.folder / "fail")}
        with (self.folder / "log").open("ab") as log:
            self.query = subprocess.Popen(
                [sys.executable, __file__, str(self.folder)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End the driver and its Java at once, as a power cut would."""
        if self.query is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.query.pid, signal.SIGKILL)
            self.query.wait()

    def sell(self) -> None:
        """A file with more rows than a batch has room for."""
        numbers = np.arange(self.sold, self.sold + ROWS_PER_FILE)
        table = pa.table({"id": numbers, "key": self.dice.integers(0, KEYS, ROWS_PER_FILE)})
        self.sold += ROWS_PER_FILE
        aside = self.folder / "in" / f".{self.files}"
        pq.write_table(table, aside)
        aside.rename(self.folder / "in" / f"{self.files}.parquet")
        self.files += 1

    def add_master_rows(self) -> None:
        """Four more for each batch that is through, so that some come early and some late on any machine."""
        wanted = min(KNOWN_AT_FIRST + 4 * len(list((self.folder / "out").glob("*.json"))), KEYS - NEVER_THERE)
        if wanted > self.arrived:
            rows = self.rows_of(range(self.arrived, wanted))
            self.master = self.master.apply(rows.append_column("_op", pa.array(["insert"] * rows.num_rows)))
            self.arrived = wanted

    @property
    def has_all_master_rows(self) -> bool:
        return self.arrived == KEYS - NEVER_THERE

    def live_until(self, met: Callable[[], bool]) -> None:
        """Bursts, pauses and master rows until something has happened: a new file when most of what was shed is back."""
        ends = time.monotonic() + 240
        while not met():
            is_over = time.monotonic() > ends or (self.query is not None and self.query.poll() is not None)
            assert not is_over or met(), (self.folder / "log").read_text()[-3000:]
            if not self.has_all_master_rows and self.on_their_way < ROWS_PER_FILE:
                self.sell()
            self.add_master_rows()
            time.sleep(0.1)

    @property
    def on_their_way(self) -> int:
        """Rows sold, neither through nor parked."""
        return self.sold - len(self.out()) - self.aside("parking").waiting

    def aside(self, place: str) -> ParkingCounts:
        return count_rows(self.folder / place)

    def out(self) -> list[Any]:
        return [row for file in (self.folder / "out").glob("*.json") for row in json.loads(file.read_text())]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One stream, hurt by one test after the other and judged by the last."""
    rig = Rig(tmp_path_factory.mktemp("aside"))
    yield rig
    rig.kill()


@pytest.mark.parametrize("point", ["after_parking", "before_shedding", "after_shedding", "after_release"])
def test_killed_by_itself(rig: Rig, point: str) -> None:
    """The driver between setting rows of a batch aside and delivering it; a source between sealing rows and telling Spark."""
    rig.start()
    (rig.folder / "fail" / point).touch()
    rig.live_until(lambda: not (rig.folder / "fail" / point).exists())
    time.sleep(0.5)
    rig.kill()


def test_killed_from_outside(rig: Rig) -> None:
    rig.start()
    before = len(rig.out())
    rig.live_until(lambda: len(rig.out()) > before + 20)
    rig.kill()


def test_then_each_row_has_left_once(rig: Rig) -> None:
    rig.start()
    rig.live_until(lambda: rig.has_all_master_rows and len(rig.out()) >= rig.sold)
    rig.kill()
    rows = rig.out()
    assert Counter(i for i, *_ in rows) == Counter(range(rig.sold))
    sold = pq.read_table(rig.folder / "in")
    key_of = dict(zip(sold["id"].to_numpy().tolist(), sold["key"].to_numpy().tolist(), strict=True))
    assert all(name == f"name {key_of[i]}" for i, fate, name, *_ in rows if fate == "joined")
    rejected = {i for i, fate, *_ in rows if fate == "rejected"}
    assert rejected >= {i for i, key in key_of.items() if key >= KEYS - NEVER_THERE}
    assert sum(fate == "joined" and has_parked for _, fate, _, has_parked, _ in rows) > 5
    lane, parking = rig.aside("lane"), rig.aside("parking")
    assert lane.parked == lane.released > ROWS_PER_FILE - ROOM_ROWS
    assert parking.parked == parking.released
    # A row that parked since does not say that it was shed before.
    assert 0 < sum(was_shed for *_, was_shed in rows) <= lane.released
    again = [json.loads(file.read_text()) for file in (rig.folder / "out").glob("*.again")]
    assert all(batch["same"] for batch in again)


if __name__ == "__main__":
    run_query(Path(sys.argv[1]))
