"""Plain index nested loops on SQLite: one prepared lookup a stream row."""

import sqlite3
from collections.abc import Iterable, Iterator

import pyarrow as pa

from tidemill.lab.join_data import JoinData
from tidemill.lab.rows import beside, columns_of_rows

QUERY = "SELECT name, supplier, supplier_id, price, stock, shelf, listed_on FROM master WHERE key = ?"
NOTHING = (None,) * 7


class SqliteInl:
    """Reads through SQLite's page cache of the given size; the system's page cache helps it, which is not counted."""

    bytes_read = 0

    def __init__(self, data: JoinData, memory_bytes: int) -> None:
        self._database = sqlite3.connect(f"file:{data.sqlite}?mode=ro", uri=True)
        self._database.execute(f"PRAGMA cache_size = -{max(1, memory_bytes // 1024)}")

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        execute = self._database.execute
        for batch in batches:
            found = [execute(QUERY, (key,)).fetchone() or NOTHING for key in batch.column("key").to_pylist()]
            yield beside(batch, columns_of_rows(found))


def open_contender(data: JoinData, memory_bytes: int) -> SqliteInl:
    return SqliteInl(data, memory_bytes)
