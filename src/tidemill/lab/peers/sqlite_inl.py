"""Plain index nested loops on SQLite: one prepared lookup a stream row."""

import sqlite3
from collections.abc import Iterable, Iterator

import pyarrow as pa

from tidemill.lab.join_data import JoinData
from tidemill.lab.kernel_counts import drop_from_cache
from tidemill.lab.peers import Outputs
from tidemill.lab.rows import beside, columns_of_rows

QUERY = "SELECT name, supplier, supplier_id, price, stock, shelf, listed_on FROM master WHERE key = ?"
NOTHING = (None,) * 7
PIECE_ROWS = 1000


class SqliteInl:
    """Keeps pages in SQLite's own cache, which gets the budget; the system's page cache forgets the file every 1,000 rows.

    So at most the 4 MB of leaves that 1,000 rows touched are there twice.
    """

    def __init__(self, data: JoinData, memory_bytes: int) -> None:
        self._file = data.path("sqlite")
        self._database = sqlite3.connect(f"file:{self._file}?mode=ro&immutable=1", uri=True)
        self._database.execute(f"PRAGMA cache_size = -{max(1, memory_bytes // 1024)}")

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Outputs]:
        for batch in batches:
            for first in range(0, batch.num_rows, PIECE_ROWS):
                drop_from_cache(self._file)
                yield (self._join_piece(batch.slice(first, PIECE_ROWS)),)

    def _join_piece(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        execute = self._database.execute
        found = [execute(QUERY, (key,)).fetchone() or NOTHING for key in piece.column("key").to_pylist()]
        return beside(piece, columns_of_rows(found))


def open_contender(data: JoinData, memory_bytes: int) -> SqliteInl:
    return SqliteInl(data, memory_bytes)
