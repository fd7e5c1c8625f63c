"""Blocks, a receiver as a real process, and a client that speaks to it frame by frame."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

from tidemill.core.block import Block, encode_block, schema_fingerprint
from tidemill.core.wire import FRAME_FORMAT, Frame, Kind, pack_block, pack_frame, receive_frame
from tidemill.staging import LogReader

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def make_block(number: int, *, source: str = "shop", rows: int = 3, start: int | None = None) -> Block:
    """Block `number` with ids that continue those of the block before it."""
    first = (number - 1) * rows if start is None else start
    ids = list(range(first, first + rows))
    batch = pa.RecordBatch.from_pydict({"id": ids, "name": [f"{source}-{i}" for i in ids]}, schema=SCHEMA)
    return encode_block(batch, source=source, number=number, last_position=ids[-1])


def names_in(path: Path) -> list[str]:
    with LogReader(path) as reader:
        return [
            name
            for _, batch in reader.read(reader.first_entry, reader.head().entries)
            for name in batch["name"].to_pylist()
        ]


class ReceiverProcess:
    """`python -m tidemill.staging.receiver`, started and ready."""

    def __init__(self, log_path: Path, *options: str) -> None:
        ready = log_path.parent / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tidemill.staging.receiver", "--log", str(log_path)]
        self.process = subprocess.Popen([*command, "--ready-file", str(ready), *options])
        while not ready.exists():
            if self.process.poll() is not None:
                raise RuntimeError(f"the receiver ended with {self.process.returncode}")
            time.sleep(0.01)
        facts = json.loads(ready.read_text())
        assert facts["pid"] == self.process.pid
        self.port: int = facts["port"]

    def kill(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def terminate(self) -> int:
        self.process.terminate()
        return self.process.wait()


class Client:
    """One connection after its hello; `welcome` is the first answer, whatever it is."""

    def __init__(self, port: int, source: str = "shop", schema: pa.Schema = SCHEMA) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.sendall(
            pack_frame(
                Kind.HELLO, {"source": source, "schema": schema_fingerprint(schema), "format": FRAME_FORMAT}
            )
        )
        self.welcome = self.answer()

    def answer(self) -> Frame:
        return receive_frame(self.socket)

    def send(self, block: Block) -> None:
        self.socket.sendall(pack_block(block))

    def ask(self, block: Block) -> Frame:
        self.send(block)
        return self.answer()

    def close(self) -> None:
        self.socket.close()
