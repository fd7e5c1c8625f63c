"""Hot rows of any length in a file that all processes of a host map: what one reads, all of them find."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tidemill.join.parts import shared_cache_kernels as kernels
from tidemill.join.parts import shared_meeting_kernels, sifting_kernels
from tidemill.join.parts.hot_cache import Met
from tidemill.join.parts.kernels import Bools, Int64s, UInt32s
from tidemill.join.parts.shared_file import HEADER_BYTES, CodesAndHits, SharedFile
from tidemill.master.rows import RowLayout, UInt8s

ENTRY_BYTES = 16 + 2
_FILL = 0.7  # of the table: fuller ones are slower to search
_EVICTED_SHARE = 0.25
_BYTES_PER_TOLD_CODE = 64
_SLOTS_AT_A_TIME = 2**17


class SharedRowCache(SharedFile):
    """The hot rows of one join on one host.

    Args:
        path: Of the file, one for each setting; its locks lie beside it.
        size_bytes: Of the file. Memory is taken as it fills.
        row_bytes: Expected size of a row; decides how the space is split between table and rows.
        layout: Of the rows.
        setting: Whatever else must be the same for all who share it.
    """

    def __init__(self, path: Path, size_bytes: int, row_bytes: int, layout: RowLayout, setting: str) -> None:
        each = row_bytes + kernels.GROUP_BYTES + ENTRY_BYTES / _FILL
        self._capacity = max(2, int((size_bytes - HEADER_BYTES) / each / _FILL))
        self._row_shape = (layout.last_open_offset, layout.fixed_bytes)
        file_bytes = HEADER_BYTES + max(self._capacity * ENTRY_BYTES + 64, size_bytes - HEADER_BYTES)
        super().__init__(path, file_bytes, f"{self._capacity} {self._row_shape} {setting}")
        table_end = HEADER_BYTES + self._capacity * 16
        hits_end = -(-(table_end + self._capacity * 2) // 64) * 64
        memory = self._memory
        self._table = memory[HEADER_BYTES:table_end].view(np.int64).reshape(-1, 2)
        self._hits = memory[table_end : table_end + self._capacity * 2].view(np.uint16)
        self.rows: UInt8s = memory[hits_end : hits_end + (len(memory) - hits_end) // 8 * 8]

    # What a join asks of it.

    @property
    def entries(self) -> int:
        return int(self._state[kernels.ENTRIES])

    @property
    def is_full(self) -> bool:
        return bool(self._state[kernels.IS_FULL])

    @property
    def has_been_full(self) -> bool:
        return self.is_full or int(self._state[kernels.LEAST_MET]) > 1

    @property
    def bytes_held(self) -> int:
        return HEADER_BYTES + self._table.nbytes + self._hits.nbytes + int(self._state[kernels.END])

    def probe(self, codes: Int64s, present: Bools) -> tuple[Int64s, Int64s, Int64s]:
        at, rows, sizes = np.empty((3, len(codes)), dtype=np.int64)
        kernels.probe(self._table, self._hits, self.rows, codes, present, at, rows, sizes)
        self._state[kernels.PROBED] += len(codes)
        return at, rows, sizes

    def meet(self, codes: Int64s, present: Bools, waits: tuple[Any, ...], most: int) -> Met:
        known, at = np.empty((2, len(codes)), dtype=np.int64)
        result = np.zeros(7, dtype=np.int64)
        shared = (self._table, self._hits, self.rows)
        meet: Any = shared_meeting_kernels.meet
        meet(*shared, codes, present, *waits, most, known, at, result)
        self._state[kernels.PROBED] += int(result[sifting_kernels.UNTIL])
        leaving = int(result[sifting_kernels.KNOWN])
        return Met(known[:leaving], at[:leaving], result)

    def admit(
        self, page: UInt8s, page_at: Int64s, start: Int64s, matches: Int64s, codes: Int64s, met: UInt32s
    ) -> None:
        least_met = int(self._state[kernels.LEAST_MET])
        if int(met.max(initial=0)) < least_met:
            return
        read = (page, page_at, start, matches, codes, met)
        with self._locked(self._adding):
            kernels.admit(self._table, self._hits, self.rows, self._state, *read, least_met, *self._row_shape)

    def renew(self) -> None:
        """Nothing: others may be reading. Room is made between tasks, by `leave`."""

    # What the file asks of it.

    @property
    def _most_told_codes(self) -> int:
        """Which take an eighth of the memory of hot rows, and are nearly all."""
        return self._size_bytes // _BYTES_PER_TOLD_CODE

    def _parts(self) -> Iterator[CodesAndHits]:
        for at in range(0, self._capacity, _SLOTS_AT_A_TIME):
            some = slice(at, at + _SLOTS_AT_A_TIME)
            is_used = self._table[some, 1] != 0
            yield self._table[some, 0][is_used], self._hits[some][is_used]

    @property
    def _wants_room(self) -> bool:
        return self.is_full

    def _forget(self, codes: Int64s) -> None:
        self._state[kernels.ENTRIES] -= kernels.forget(self._table, self._hits, codes)

    def _empty(self) -> None:
        self._table[:], self._hits[:], self._state[:] = 0, 0, 0
        self._state[kernels.MOST_ENTRIES] = min(self._capacity - 1, int(self._capacity * _FILL))
        self._state[kernels.LEAST_MET] = 1

    def _make_room(self) -> None:
        """Let the quarter with the fewest hits go, and halve the hits of the others."""
        used = self._hits[self._table[:, 1] != 0]
        leave = max(1, int(len(used) * _EVICTED_SHARE))
        below = int(np.partition(used, leave - 1)[leave - 1]) if len(used) else 0
        fewer, equal = int((used < below).sum()), int((used == below).sum())
        gone = kernels.evict(self._table, self._hits, below, leave - fewer, max(1, equal))
        end = kernels.close_gaps(self._table, self.rows, int(self._state[kernels.END]))
        if end < 0:
            self._empty()
        else:
            self._state[kernels.ENTRIES], self._state[kernels.END] = len(used) - gone, end
            np.right_shift(self._hits, 1, out=self._hits)
            self._state[kernels.PROBED] //= 2
            self._state[kernels.LEAST_MET] = max(2, below // 2 + 1)
        self._state[kernels.IS_FULL] = 0


__all__ = ["SharedRowCache"]
