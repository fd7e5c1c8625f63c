"""Whether master data has the keys of parked rows by now, at the price of the pages that changed.

Rows that were looked up in one version need only those pages of the next one that the version before did not have:
were a key in another page, it would have been found there. An `apply` of a hundred changes touches a hundred pages at
most, however many rows wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.master import MasterData
from tidemill.master.hashing import Bools, Int64s
from tidemill.master.keys import KeyForm
from tidemill.master.layout import PageFile, current_version

PAGES_AT_ONCE = 1_024
"""16 MB of pages of the usual size."""
KEPT_VERSIONS = 4
"""Of which the places of pages are remembered, 8 bytes a page; rows looked up before those are looked up in full."""


@dataclass(frozen=True)
class Codes:
    """Keys of some rows as a master store sees them."""

    form: KeyForm
    codes: Int64s
    present: Bools

    def at(self, rows: "Int64s | Bools") -> "Codes":
        return Codes(self.form, self.codes[rows], self.present[rows])


class KeyLookup:
    """Asks the current version of a master store."""

    def __init__(self, master_path: Path) -> None:
        self._path = master_path
        self._master: MasterData | None = None
        self._files: dict[PageFile, int] = {}
        self._next_file = count()
        self._places: dict[int, Int64s] = {}
        self._changed_before: dict[int, Int64s] = {}

    def use_current(self) -> int:
        """The version that is asked from now on."""
        if self._master is None or current_version(self._path) != self._master.version:
            self._open(MasterData.open(self._path))
        return self.master.version

    @property
    def master(self) -> MasterData:
        return self._master if self._master is not None else self._open(MasterData.open(self._path))

    def _open(self, master: MasterData) -> MasterData:
        if self._master is not None:
            self._master.close()
        self._master = master
        index = master.index
        known = self._files
        self._files = {f: known[f] if f in known else next(self._next_file) for f in master.manifest.files}
        files = np.array([*self._files.values(), 0], np.int64)[index.file]
        self._places[master.version] = files << 32 | index.offset.astype(np.int64)
        for old in sorted(self._places)[:-KEPT_VERSIONS]:
            del self._places[old]
        self._changed_before = {}
        return master

    def codes(self, keys: "Sequence[pa.Array[Any]]") -> Codes:
        form = self.master.key_form
        return Codes(form, *form.codes(keys))

    def found(self, keys: "Sequence[pa.Array[Any]]", codes: Codes, since: int | None) -> Bools:
        """Where the master has a row for these keys.

        Args:
            keys: Key columns of the rows.
            codes: What `codes` gave for them under the form of this version.
            since: Version in which all of them were looked up in vain; None for never.
        """
        held = np.zeros(len(codes.codes), np.bool_)
        first, pages_each = self.master.locate(codes.codes)
        asked = codes.present & (pages_each > 0)
        if since in self._places:
            changed = self._changed(since)
            asked &= changed[first + pages_each] > changed[first]
        rows = np.flatnonzero(asked)
        pages = self._pages(first[rows], pages_each[rows])
        for at in range(0, len(pages), PAGES_AT_ONCE):
            self._mark(held, keys, codes, rows, pages[at : at + PAGES_AT_ONCE])
        return held

    def _mark(
        self, held: Bools, keys: "Sequence[pa.Array[Any]]", codes: Codes, rows: Int64s, pages: Int64s
    ) -> None:
        stored = self.master.gather_rows(pages)
        if not len(stored.codes):
            return
        order = np.argsort(stored.codes, kind="stable")
        nearest = np.searchsorted(stored.codes, codes.codes[rows], sorter=order)
        place = order[np.minimum(nearest, len(order) - 1)]
        same = stored.codes[place] == codes.codes[rows]
        rows, place = rows[same], place[same]
        if codes.form.is_hashed and len(rows):
            # No two keys of a store share a code, so the first row of a code speaks for all of them.
            real = self.master.layout.decode(stored.buffer, stored.at[place])
            mine = [column.take(rows) for column in keys]
            rows = rows[codes.form.same(mine, [real.column(name) for name in codes.form.columns])]
        held[rows] = True

    def _pages(self, first: Int64s, pages_each: Int64s) -> Int64s:
        """Numbers of all pages that are named, each once."""
        edges = np.zeros(self.master.pages + 1, np.int64)
        np.add.at(edges, first, 1)
        np.add.at(edges, first + pages_each, -1)
        return np.flatnonzero(np.cumsum(edges[:-1]))

    def _changed(self, since: int) -> Int64s:
        """For each page of this version and the end: pages before it that version `since` did not have."""
        if since not in self._changed_before:
            is_new = ~np.isin(self._places[self.master.version], self._places[since])
            self._changed_before[since] = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_new)])
        return self._changed_before[since]


__all__ = ["Codes", "KeyLookup"]
