"""Kill every part of the running path: nothing lost, nothing doubled, nothing altered."""

import os
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from tidemill.capture.hooks.sqlite import SqliteCapture
from tidemill.core.block import Block, encode_block, schema_fingerprint
from tidemill.core.errors import InternalError
from tidemill.core.wire import FRAME_FORMAT, Kind, pack_block, pack_frame, receive_frame
from tidemill.demo.shop import SALES_SCHEMA, Till, sell

from .conftest import Rig, assert_nothing_lost_doubled_or_altered

pytestmark = pytest.mark.timeout(240)


def test_everything_up_and_running(rig: Rig) -> None:
    rig.sell()
    assert_nothing_lost_doubled_or_altered(rig.verdict(), 1500)


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_driver_killed_around_the_commit_of_a_batch(rig: Rig, point: str) -> None:
    rig.open_shop(2500)
    rig.tell_to_die(point)
    starts = rig.parts.driver.starts
    rig.watch_until(lambda: rig.parts.driver.starts > starts)
    rig.parts.sell_out()
    assert_nothing_lost_doubled_or_altered(rig.verdict(), 2500)


def test_driver_killed_from_outside_in_the_middle_of_the_stream(rig: Rig) -> None:
    rig.open_shop(3000)
    loaded = rig.parts.monitor.loaded_entries
    rig.watch_until(lambda: rig.parts.monitor.loaded_entries > loaded)
    rig.kill(rig.parts.driver.pid)
    rig.parts.sell_out()
    assert_nothing_lost_doubled_or_altered(rig.verdict(), 3000)


def test_python_worker_killed_inside_a_task(rig: Rig) -> None:
    starts = rig.parts.driver.starts
    for _ in range(3):
        rig.tell_to_die("in_task")
        rig.sell(600)
        rig.parts.drain()
        assert rig.is_dead("in_task")
    assert_nothing_lost_doubled_or_altered(rig.verdict(), 1800)
    assert rig.parts.driver.starts == starts, "the query itself must survive"


def test_loader_ends_between_commit_and_acknowledgement(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.parts.loader.end()
    monkeypatch.setenv("TIDEMILL_FAIL_LOADER", "after_commit:3")
    rig.parts.start_loader()
    starts = rig.parts.loader.starts
    rig.sell(3000)
    rig.parts.drain()
    assert rig.parts.loader.starts > starts, "the loader must have died at least once"
    monkeypatch.delenv("TIDEMILL_FAIL_LOADER")
    assert_nothing_lost_doubled_or_altered(rig.verdict(), 3000)


def test_shop_killed_right_after_a_commit(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_FAIL_AFTER_COMMIT", "40")
    with pytest.raises(InternalError, match="the shop ended"):
        rig.sell()
    monkeypatch.delenv("TIDEMILL_FAIL_AFTER_COMMIT")
    rig.sell(200)  # its next start finds what was committed and never handed over
    assert_nothing_lost_doubled_or_altered(rig.verdict(), 240)


def test_receiver_killed_in_the_middle_of_the_stream(rig: Rig) -> None:
    rig.open_shop(4000)
    for _ in range(2):
        staged = rig.parts.monitor.staged_entries
        rig.watch_until(lambda at=staged: rig.parts.monitor.staged_entries > at)  # type: ignore[misc]
        rig.kill(rig.parts.receiver.pid)
    rig.parts.sell_out()
    assert_nothing_lost_doubled_or_altered(rig.verdict(), 4000)


def answers(address: tuple[str, int]) -> bool:
    try:
        hello(address)[0].close()
    except ConnectionError:
        return False
    return True


def test_every_block_delivered_twice_and_shuffled(rig: Rig) -> None:
    address = ("127.0.0.1", rig.parts.receiver_port)
    rig.watch_until(lambda: answers(address))  # it may just have been killed
    with closing(sqlite3.connect(rig.places.database)) as shop:
        last = shop.execute("SELECT max(id) FROM sales").fetchone()[0]
        till = Till(1_000_000, seed=99)
        for _ in range(60):
            sell(shop, till.next(5))  # committed without the hook
        rows = shop.execute("SELECT * FROM sales WHERE id > ? ORDER BY id", (last,)).fetchall()
    number, _ = hello(address)[1]
    blocks = [block_of(rows[at : at + 7], number + 1 + i) for i, at in enumerate(range(0, len(rows), 7))]
    deliveries = 2 * blocks
    dice = random.Random(5)
    missing = {block.number for block in blocks}
    while missing:
        dice.shuffle(deliveries)
        link, _ = hello(address)
        with closing(link):
            for block in deliveries:
                link.sendall(pack_block(block))
                if receive_frame(link).kind == Kind.ACK:
                    missing.discard(block.number)
    assert_nothing_lost_doubled_or_altered(rig.verdict(), 300)


def test_deleted_checkpoint_resumes_from_the_warehouse_and_a_foreign_one_is_refused(rig: Rig) -> None:
    rig.parts.driver.end()
    rig.sell_while_driver_is_down()
    aside = rig.places.checkpoint.with_name("checkpoint.old")
    rig.places.checkpoint.rename(aside)
    rig.parts.driver.start()
    rig.sell(500)
    assert_nothing_lost_doubled_or_altered(rig.verdict(), 1000)

    rig.parts.driver.end()
    new = rig.places.checkpoint.with_name("checkpoint.new")
    rig.places.checkpoint.rename(new)
    aside.rename(rig.places.checkpoint)
    command = [
        sys.executable,
        "-m",
        "tidemill.demo.pipeline",
        "--data",
        str(rig.places.data),
        "--memory",
        "32 MB",
    ]
    refused = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ)
    )
    assert refused.returncode not in (0, 1)
    assert "checkpoint" in refused.stderr
    shutil.rmtree(rig.places.checkpoint)
    new.rename(rig.places.checkpoint)
    rig.parts.driver.start()
    rig.sell(300)
    assert_nothing_lost_doubled_or_altered(rig.verdict(), 300)


def hello(address: tuple[str, int]) -> tuple[socket.socket, tuple[int, int]]:
    link = socket.create_connection(address, timeout=10)
    fingerprint = schema_fingerprint(SqliteCapture.schema_for(SALES_SCHEMA))
    link.sendall(pack_frame(Kind.HELLO, {"source": "shop", "schema": fingerprint, "format": FRAME_FORMAT}))
    welcome = receive_frame(link)
    assert welcome.kind == Kind.WELCOME, welcome.header
    return link, (welcome.header["last_number"], welcome.header["last_position"])


def block_of(rows: list[tuple[int, ...]], number: int) -> Block:
    schema = SqliteCapture.schema_for(SALES_SCHEMA)
    now = datetime.now(UTC)
    columns = [*zip(*rows, strict=True), [now] * len(rows)]
    batch = pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )
    return encode_block(batch, source="shop", number=number, last_position=rows[-1][0])
