"""Hot rows of equal length in sets of eight, in a file that all processes of a host map."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tidemill.join.parts import set_cache_kernels, sifting_kernels
from tidemill.join.parts import shared_set_kernels as kernels
from tidemill.join.parts.hot_cache import Met
from tidemill.join.parts.kernels import Bools, Int32s, Int64s, UInt16s, UInt32s
from tidemill.join.parts.set_cache import FULL, PROBES_AN_AGE, SET_ENTRY_BYTES
from tidemill.join.parts.set_cache_kernels import EMPTY, LEAST_TO_REPLACE, MOST_HITS, WAYS
from tidemill.join.parts.shared_file import HEADER_BYTES, CodesAndHits, SharedFile
from tidemill.master.rows import RowLayout, UInt8s

_BYTES_PER_TOLD_CODE = 32
_SLOTS_AT_A_TIME = 2**17
_REFUSED_SHARE = 1 / 16  # of the places: so many that found none, and room is made
_NO_LOOK = (
    0  # rows are not replaced while somebody may want to see them, so nobody must know when they were found
)


class SharedSetCache(SharedFile):
    """What `SetCache` is for one process, for all of a host: where a code has one row at most, and rows are equally long.

    A code that comes takes a free place of its set, or none. Between two tasks, when nobody looks, the weakest of each full
    set goes, if enough found no place. So no row is ever replaced that another process may be reading, and no row moves. A
    hot row takes 6 bytes beside itself where `SharedRowCache` takes 42.

    Args:
        path: Of the file, one for each setting; its locks lie beside it.
        size_bytes: Of the file. Memory is taken as it fills.
        layout: Of the rows, for which `SetCache.may_hold` says yes.
        setting: Whatever else must be the same for all who share it.
    """

    def __init__(self, path: Path, size_bytes: int, layout: RowLayout, setting: str) -> None:
        self._row_bytes = layout.least_row_bytes
        set_bytes = WAYS * (self._row_bytes + SET_ENTRY_BYTES)
        places = WAYS * max(1, (size_bytes - HEADER_BYTES) // set_bytes)
        super().__init__(path, HEADER_BYTES + places // WAYS * set_bytes, f"sets {self._row_bytes} {setting}")
        codes, facts, rows = np.split(self._memory[HEADER_BYTES:], [4 * places, 6 * places])
        self._codes: Int32s = codes.view(np.int32)
        self._facts: UInt16s = facts.view(np.uint16)
        self.rows: UInt8s = rows

    # What a join asks of it.

    @property
    def entries(self) -> int:
        return int(self._state[kernels.ENTRIES])

    @property
    def is_full(self) -> bool:
        """Never so that nobody may come any more: other sets have places."""
        return False

    @property
    def has_been_full(self) -> bool:
        return bool(self._state[kernels.LEAST_MET] > 1) or self.entries > FULL * len(self._codes)

    @property
    def bytes_held(self) -> int:
        return HEADER_BYTES + self._codes.nbytes + self._facts.nbytes + self.entries * self._row_bytes

    def probe(self, codes: Int64s, present: Bools) -> tuple[Int64s, Int64s, Int64s]:
        """As `HotCache.probe` says."""
        at, rows, sizes = np.empty((3, len(codes)), dtype=np.int64)
        sets = (self._codes, self._facts, self._row_bytes, _NO_LOOK)
        set_cache_kernels.probe(*sets, codes, present, at, rows, sizes)
        kernels.see_what_others_wrote(self._state)
        self._state[kernels.PROBED] += len(codes)
        return at, rows, sizes

    def meet(self, codes: Int64s, present: Bools, waits: tuple[Any, ...], most: int) -> Met:
        """As `HotCache.meet` says."""
        known, at = np.empty((2, len(codes)), dtype=np.int64)
        result = np.zeros(7, dtype=np.int64)
        sets = (self._codes, self._facts, self._row_bytes, _NO_LOOK)
        meet: Any = set_cache_kernels.meet
        meet(*sets, codes, present, *waits, most, known, at, result)
        kernels.see_what_others_wrote(self._state)
        self._state[kernels.PROBED] += int(result[sifting_kernels.UNTIL])
        leaving = int(result[sifting_kernels.KNOWN])
        return Met(known[:leaving], at[:leaving], result)

    def admit(
        self, page: UInt8s, page_at: Int64s, start: Int64s, matches: Int64s, codes: Int64s, met: UInt32s
    ) -> None:
        """As `HotCache.admit` says."""
        if int(met.max(initial=0)) < int(self._state[kernels.LEAST_MET]):
            return
        read = (page, page_at, start, matches, codes, met)
        with self._locked(self._adding):
            kernels.admit(self._codes, self._facts, self.rows, self._state, *read, self._row_bytes)

    def renew(self) -> None:
        """Nothing: others may be reading. Room is made between tasks."""

    # What the file asks of it.

    _code_type = np.int32

    @property
    def _most_told_codes(self) -> int:
        """Which take an eighth of the memory of hot rows, and are nearly all."""
        return self._size_bytes // _BYTES_PER_TOLD_CODE

    def _parts(self) -> Iterator[CodesAndHits]:
        for at in range(0, len(self._codes), _SLOTS_AT_A_TIME):
            codes = self._codes[at : at + _SLOTS_AT_A_TIME]
            is_used = codes != EMPTY
            hits = self._facts[at : at + _SLOTS_AT_A_TIME][is_used] & np.uint16(MOST_HITS)
            yield codes[is_used].astype(np.int64), hits

    @property
    def _wants_room(self) -> bool:
        return bool(self._state[kernels.REFUSED] > _REFUSED_SHARE * len(self._codes))

    def _make_room(self) -> None:
        self._state[kernels.ENTRIES] -= kernels.let_weakest_go(self._codes, self._facts)
        self._state[kernels.REFUSED] = 0
        self._state[kernels.LEAST_MET] = LEAST_TO_REPLACE
        if self._state[kernels.PROBED] > PROBES_AN_AGE * len(self._codes):
            self._state[kernels.PROBED] = 0
            set_cache_kernels.halve_hits(self._facts)

    def _empty(self) -> None:
        self._codes[:], self._facts[:], self._state[:] = EMPTY, 0, 0
        self._state[kernels.LEAST_MET] = 1

    def _forget(self, codes: Int64s) -> None:
        self._state[kernels.ENTRIES] -= kernels.forget(self._codes, codes)


__all__ = ["SharedSetCache"]
