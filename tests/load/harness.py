"""Real loaders for tests: in a thread where that is enough, as a child process where it gets killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import uvicorn

from tidemill.load.app import HttpLimits, build_app
from tidemill.load.client import (
    BlockRef,
    LoaderClient,
    OpenedPipeline,
    TableSpec,
    Ticket,
    create_token,
    read_token,
)
from tidemill.load.engine import LoadEngine
from tidemill.load.heads import BoundedHeads
from tidemill.load.staging import StagingArea
from tidemill.load.tokens import TokenCheck
from tidemill.load.warehouses.duckdb import DuckdbWarehouse

TOKEN = "t" * 43
SALES_SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string())])
SALES = TableSpec("sales", SALES_SCHEMA)
REJECTS = TableSpec("rejects", pa.schema([("why", pa.string())]))


def sales(first: int, count: int) -> pa.Table:
    ids = list(range(first, first + count))
    return pa.table({"id": ids, "city": [f"city {i}" for i in ids]}, schema=SALES_SCHEMA)


@dataclass
class InThread:
    client: LoaderClient
    engine: LoadEngine
    port: int
    folder: Path


@contextmanager
def loader_in_thread(
    folder: Path, limits: HttpLimits | None = None, staging_bytes: int = 10**8
) -> Iterator[InThread]:
    engine = LoadEngine(DuckdbWarehouse(folder / "w.duckdb"), StagingArea(folder / "state", staging_bytes))
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    app = build_app(engine, TokenCheck(TOKEN), limits)
    server = uvicorn.Server(
        uvicorn.Config(
            app, http=BoundedHeads, log_level="critical", lifespan="off", timeout_graceful_shutdown=1
        )
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield InThread(
            LoaderClient(f"http://127.0.0.1:{port}", TOKEN, deadline_seconds=10), engine, port, folder
        )
    finally:
        server.should_exit = True
        thread.join()
        engine.close()
        listener.close()


class LoaderProcess:
    """A loader as users run it; the same folder and port across restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warehouse = folder / "w.duckdb"
        self.token_file = folder / "token"
        create_token(self.token_file)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[str] | None = None

    @property
    def client(self) -> LoaderClient:
        return LoaderClient(f"http://127.0.0.1:{self.port}", read_token(self.token_file), deadline_seconds=20)

    def command(self, *more: str) -> list[str]:
        return [
            *(sys.executable, "-m", "tidemill.load.service", "--state", str(self.folder / "state")),
            *("--warehouse", str(self.warehouse), "--port", str(self.port)),
            *("--token-file", str(self.token_file), "--ready-file", str(self.ready_file), *more),
        ]

    @property
    def ready_file(self) -> Path:
        return self.folder / "ready.json"

    def start(self, fail: str = "") -> None:
        self.ready_file.unlink(missing_ok=True)
        with (self.folder / "stderr.txt").open("a") as log:
            self.process = subprocess.Popen(
                self.command(), env={**os.environ, "TIDEMILL_FAIL_LOADER": fail}, stderr=log, text=True
            )
        while not self.ready_file.exists():
            assert self.process.poll() is None, (self.folder / "stderr.txt").read_text()
            time.sleep(0.02)
        assert json.loads(self.ready_file.read_text())["pid"] == self.process.pid

    def restart_when_dead(self) -> None:
        """A supervisor of one restart, in the background: the client's retries must bridge the gap."""
        process = self.process
        assert process is not None

        def supervise() -> None:
            process.wait()
            self.start()

        self._supervisor = threading.Thread(target=supervise)
        self._supervisor.start()

    def wait_for_restart(self) -> None:
        self._supervisor.join()

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(signal_number)
        return self.process.wait()


def put_sales(
    client: LoaderClient, ticket: Ticket, batch_id: int, rows: pa.Table, attempt: int = 0
) -> BlockRef:
    return client.put_block(ticket, batch_id, "sales", rows, partition=0, attempt=attempt, number=0)


def load_sales(
    client: LoaderClient, opened: OpenedPipeline, batch_ids: Sequence[int], rows: int = 10
) -> None:
    """Batches that read entries [id * rows, (id + 1) * rows) and write them as ids of `sales`."""
    for batch_id in batch_ids:
        start = batch_id * rows
        ref = put_sales(client, opened.ticket, batch_id, sales(start, rows))
        client.commit(opened.ticket, batch_id, start=start, end=start + rows, blocks=[ref])


def ids_in(client: LoaderClient) -> list[int]:
    return client.sql("SELECT id FROM sales ORDER BY id").column("id").to_pylist()
