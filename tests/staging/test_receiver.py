"""The receiver takes each block once, in order, whatever clients and crashes do."""

import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.core.wire import Kind, pack_block
from tidemill.staging import StagingLog, mark_consumed
from tidemill.staging.appender import Appender, Arrival
from tidemill.staging.peer import Peer

from .harness import SCHEMA, Client, ReceiverProcess, make_block, names_in


def expected_names(source: str, blocks: int, rows: int = 3) -> list[str]:
    return [f"{source}-{i}" for i in range(blocks * rows)]


def test_blocks_of_many_sources_are_acknowledged_and_logged(
    receiver: ReceiverProcess, log_path: Path
) -> None:
    clients = {source: Client(receiver.port, source) for source in ("a", "b", "c")}
    for number in range(1, 21):
        for source, client in clients.items():
            client.send(make_block(number, source=source))
    for client in clients.values():
        assert [client.answer().header["number"] for _ in range(20)] == list(range(1, 21))
    names = names_in(log_path)
    for source in clients:
        assert [name for name in names if name.startswith(source)] == expected_names(source, 20)


def test_doubled_and_shuffled_blocks_over_many_connections_are_logged_once_in_order(
    receiver: ReceiverProcess, log_path: Path
) -> None:
    chance = random.Random(7)
    blocks = {number: make_block(number) for number in range(1, 31)}
    acked: set[int] = set()
    while len(acked) < len(blocks):
        client = Client(receiver.port)
        last = client.welcome.header["last_number"]
        near = [number for number in blocks if last - 5 <= number <= last + 4] * 2
        chance.shuffle(near)
        for number in near:
            client.send(blocks[number])
        for number in near:
            answer = client.answer()
            if answer.kind is Kind.ACK:
                acked.add(answer.header["number"])
            else:
                assert answer.header["code"] == "out_of_order"
                assert answer.header["expected_number"] < number
        client.close()
    assert names_in(log_path) == expected_names("shop", 30)


def test_kill_and_restart_in_mid_stream(
    start_receiver: Callable[..., ReceiverProcess], log_path: Path
) -> None:
    total, acked, receiver = 60, 0, start_receiver()
    for kill_at in (7, 23, 41, None):
        client = Client(receiver.port)
        assert client.welcome.header["last_number"] >= acked  # nothing acknowledged is lost
        try:
            for number in range(client.welcome.header["last_number"] + 1, total + 1):
                client.send(make_block(number))
                if number == kill_at:
                    receiver.kill()
            while acked < total:
                acked = client.answer().header["number"]
        except OSError:
            receiver = start_receiver()
    assert receiver.terminate() == 0
    assert names_in(log_path) == expected_names("shop", total)


def test_newer_connection_replaces_the_older(receiver: ReceiverProcess, log_path: Path) -> None:
    older = Client(receiver.port)
    assert older.ask(make_block(1)).kind is Kind.ACK
    newer = Client(receiver.port)
    assert newer.welcome.header["last_number"] == 1
    assert older.answer().header["code"] == "replaced"
    with pytest.raises(OSError):  # noqa: PT011 - reset or closed, both are right
        older.ask(make_block(2, start=500))
    assert newer.ask(make_block(2)).kind is Kind.ACK
    assert names_in(log_path) == expected_names("shop", 2)


def test_digest_conflict_is_loud_even_after_a_restart(
    start_receiver: Callable[..., ReceiverProcess], log_path: Path
) -> None:
    receiver = start_receiver()
    assert Client(receiver.port).ask(make_block(1)).kind is Kind.ACK
    receiver.kill()
    receiver = start_receiver()
    client = Client(receiver.port)
    refusal = client.ask(make_block(1, start=100)).header
    assert (refusal["code"], refusal["retryable"]) == ("digest_conflict", False)
    assert client.ask(make_block(1)).kind is Kind.ACK
    assert names_in(log_path) == expected_names("shop", 1)


def test_other_schema_is_refused(receiver: ReceiverProcess) -> None:
    refusal = Client(receiver.port, schema=pa.schema([("id", pa.int32())])).welcome
    assert (refusal.kind, refusal.header["code"]) == (Kind.REFUSE, "schema_mismatch")


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n" + b" " * 50, b"TMWF" + b"\xff" * 50])
def test_bad_frame_ends_with_a_refusal_and_harms_nobody(receiver: ReceiverProcess, garbage: bytes) -> None:
    good, bad = Client(receiver.port, "good"), Client(receiver.port, "bad")
    bad.socket.sendall(garbage)
    assert bad.answer().header["code"] == "bad_frame"
    with pytest.raises(ConnectionError):
        bad.answer()
    assert good.ask(make_block(1, source="good")).kind is Kind.ACK


def test_block_cut_in_the_middle_leaves_nothing(receiver: ReceiverProcess, log_path: Path) -> None:
    content = pack_block(make_block(1))
    for cut in (1, 20, 100, len(content) - 1):
        client = Client(receiver.port)
        client.socket.sendall(content[:cut])
        client.close()
    assert Client(receiver.port).ask(make_block(1)).kind is Kind.ACK
    assert names_in(log_path) == expected_names("shop", 1)


def test_full_queue_is_refused_for_now_and_goes_on_after_consumption(
    start_receiver: Callable[..., ReceiverProcess], log_path: Path
) -> None:
    receiver = start_receiver("--max-bytes", "6000")
    client, number = Client(receiver.port), 1
    while (answer := client.ask(make_block(number))).kind is Kind.ACK:
        number += 1
    assert (answer.header["code"], answer.header["retryable"]) == ("queue_full", True)
    assert answer.header["retry_after_ms"] > 0
    mark_consumed(log_path, number - 1)
    assert client.ask(make_block(number)).header == {"number": number}


def test_used_port_is_one_clear_line(log_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "tidemill.staging.receiver",
            "--log",
            str(log_path),
            "--port",
            str(port),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"127.0.0.1:{port}" in done.stderr


def test_log_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidemill.staging.receiver", "--log", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (4, 1)


def test_blocks_that_arrive_during_a_sync_share_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = StagingLog.create(tmp_path, SCHEMA)
    appends: list[int] = []
    first_runs, may_end = threading.Event(), threading.Event()
    real_append = log.append

    def append(blocks):
        appends.append(len(blocks))
        first_runs.set()
        may_end.wait()
        real_append(blocks)

    monkeypatch.setattr(log, "append", append)
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    monkeypatch.setattr("tidemill.staging.peer.limit_waits", lambda link: link)
    peer = Peer(theirs, "shop")
    appender = Appender(log)
    appender.put(Arrival(peer))
    appender.put(Arrival(peer, make_block(1)))
    first_runs.wait()
    for number in range(2, 8):
        appender.put(Arrival(peer, make_block(number)))
    may_end.set()
    appender.stop()
    log.close()
    assert appends == [1, 6]
    ours.close()


def test_dead_appender_ends_the_process(log_path: Path) -> None:
    script = f"""
from tidemill.staging import StagingLog
from tidemill.staging.appender import Appender, Arrival
import threading
log = StagingLog.open({str(log_path)!r})
log.trim = log.append = lambda *_: 1 / 0
log.last_block = lambda *_: 1 / 0
class Peer:
    source = "shop"
    def answer(self, content): pass
Appender(log).put(Arrival(Peer()))
threading.Event().wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 70
    assert "ZeroDivisionError" in done.stderr
