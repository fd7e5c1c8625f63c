"""Plain index nested loops on LMDB: one lookup in a mapped B+ tree a stream row."""

import marshal
from collections.abc import Iterable, Iterator

import lmdb
import pyarrow as pa

from tidemill.lab.forms import lmdb_keys
from tidemill.lab.join_data import JoinData
from tidemill.lab.kernel_counts import KernelCounts, drop_from_cache
from tidemill.lab.peers import Outputs
from tidemill.lab.rows import beside, columns_of_rows

NOTHING = (None,) * 7
PIECE_ROWS = 1000


class LmdbInl:
    """LMDB's cache is the system's page cache, so that is given the budget's size.

    Mapped pages cannot be dropped. Whenever the kernel has read the budget's bytes for us, the environment is closed,
    which unmaps the file, the file is dropped and the environment opened again: between 0 and all of the budget is
    warm. Looked at after 1,000 rows, which is 4 MB of leaves at most. Readahead is off: it fetches pages that nobody asked for.
    """

    def __init__(self, data: JoinData, memory_bytes: int) -> None:
        self._folder = data.path("lmdb")
        self._memory_bytes = memory_bytes
        self._environment: lmdb.Environment | None = None
        self._open_cold()

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Outputs]:
        for batch in batches:
            for first in range(0, batch.num_rows, PIECE_ROWS):
                piece = batch.slice(first, PIECE_ROWS)
                yield (beside(piece, columns_of_rows(self._lookup(piece))),)
                if KernelCounts.now().since(self._opened_at).bytes_read > self._memory_bytes:
                    self._open_cold()

    def _lookup(self, piece: pa.RecordBatch) -> list[tuple[object, ...]]:
        assert self._environment is not None
        with self._environment.begin(buffers=True) as transaction:
            found = map(transaction.get, lmdb_keys(piece))
            # Our own bytes, made by the benchmark itself.
            return [NOTHING if value is None else marshal.loads(value) for value in found]  # noqa: S302

    def _open_cold(self) -> None:
        if self._environment is not None:
            self._environment.close()
        drop_from_cache(self._folder / "data.mdb")
        self._environment = lmdb.open(str(self._folder), readonly=True, lock=False, readahead=False)
        self._opened_at = KernelCounts.now()


def open_contender(data: JoinData, memory_bytes: int) -> LmdbInl:
    return LmdbInl(data, memory_bytes)
