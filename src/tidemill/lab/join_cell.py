"""One cell of the join benchmark, in a process of its own: warm up, measure, then verify what was measured.

Speaks to the parent in lines of JSON: {"idle": …} before anything is opened, {"measured": …}, {"verified": …}.
"""

import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.lab.join_data import STREAM_BATCH_ROWS, STREAM_SCHEMA, JoinData, stream_batches
from tidemill.lab.peers import PEERS, Contender, open_peer
from tidemill.lab.rows import MASTER_NAMES, OUTPUT_SCHEMA
from tidemill.lab.store import open_store


@dataclass(frozen=True)
class CellSpec:
    contender: str
    zipf: float
    memory_share: float
    master_rows: int
    stream_rows: int
    most_seconds: float
    folder: str
    seed: int

    @property
    def data(self) -> JoinData:
        return JoinData(Path(self.folder), self.master_rows)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class CatalogJoin:
    """A join of the catalog as a contender."""

    def __init__(self, name: str, data: JoinData, memory_bytes: int) -> None:
        self._store = open_store(data)
        self._join = make_join(
            name,
            self._store,
            STREAM_SCHEMA,
            stream_key="key",
            budget=MemoryBudget(memory_bytes),
            how="left",
            columns=MASTER_NAMES,
        )

    @property
    def bytes_read(self) -> int:
        return self._store.bytes_read

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for report in drive(self._join, batches):
            yield from report.outputs


def open_contender(spec: CellSpec) -> Contender:
    memory_bytes = int(spec.data.master_bytes() * spec.memory_share)
    if spec.contender in PEERS:
        return open_peer(spec.contender, spec.data, memory_bytes)
    return CatalogJoin(spec.contender, spec.data, memory_bytes)


def run_cell(spec: CellSpec) -> None:
    batch_rows = min(STREAM_BATCH_ROWS, spec.stream_rows)
    warm_up_batches = -(-spec.stream_rows // batch_rows)
    all_rows = warm_up_batches * batch_rows + spec.stream_rows
    stream = stream_batches(spec.master_rows, spec.zipf, all_rows, spec.seed, batch_rows=batch_rows)
    warm_up = list(itertools.islice(stream, warm_up_batches))
    measured = list(stream)
    say({"idle": True})  # the stream is there already: what is held from here on is the contender's
    contender = open_contender(spec)
    deadline = time.monotonic() + spec.most_seconds
    for _ in contender.join(until(deadline, warm_up)):
        pass
    bytes_before = contender.bytes_read
    taken: list[pa.RecordBatch] = []
    started = time.perf_counter()
    rows = sum(
        out.num_rows for out in contender.join(until(time.monotonic() + spec.most_seconds, measured, taken))
    )
    seconds = time.perf_counter() - started
    stream_rows = sum(b.num_rows for b in taken)
    say(
        {
            "measured": {
                "rows_per_s": stream_rows / seconds,
                "bytes_read": contender.bytes_read - bytes_before,
                "stream_rows": stream_rows,
                "output_rows": rows,
            }
        }
    )
    say({"verified": same_rows(contender.join(taken), taken, spec.data)})


def until(
    deadline: float, batches: Iterable[pa.RecordBatch], taken: list[pa.RecordBatch] | None = None
) -> Iterator[pa.RecordBatch]:
    """The batches, as long as there is time; at least one."""
    for batch in batches:
        if taken is not None:
            taken.append(batch)
        yield batch
        if time.monotonic() > deadline:
            return


def same_rows(outputs: Iterable[pa.RecordBatch], stream: list[pa.RecordBatch], data: JoinData) -> bool:
    """Whether count and order-free checksum of all rows and columns equal those of DuckDB's own join."""
    judge = duckdb.connect(config={"threads": 2})
    found_rows = found_sum = 0
    for output in outputs:
        judge.register("rows_found", pa.Table.from_batches([output]).cast(OUTPUT_SCHEMA))
        found_rows, found_sum = found_rows + output.num_rows, found_sum + _checksum(judge, "FROM rows_found")
    judge.register("stream", pa.Table.from_batches(stream))
    columns = ", ".join(f"m.{name}" for name in MASTER_NAMES)
    path = str(data.parquet).replace("'", "''")
    join = f"SELECT s.key, s.event, s.pieces, {columns} FROM stream s LEFT JOIN '{path}' m ON s.key = m.key"  # noqa: S608
    expected = _checksum(judge, join)
    rows = sum(batch.num_rows for batch in stream)
    return (found_rows, found_sum % 2**64) == (rows, expected % 2**64)


def _checksum(judge: duckdb.DuckDBPyConnection, query: str) -> int:
    found = judge.execute(f"SELECT coalesce(sum(hash(t)::HUGEINT), 0) FROM ({query}) t").fetchall()  # noqa: S608
    return int(found[0][0])


def say(record: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run_cell(CellSpec(**json.loads(sys.argv[1])))
