"""Whether master data has the keys of parked rows by now, at the price of the pages that changed.

Rows that were looked up in one version need only those pages of the next one that the version before did not have:
were a key in another page, it would have been found there. The join itself was the first to look. An `apply` of a hundred changes touches a hundred pages at
most, however many rows wait.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.master import MasterData
from tidemill.master.hashing import Bools, Int64s
from tidemill.master.keys import KeyForm
from tidemill.master.layout import PageFile, current_version
from tidemill.master.reads import PageRows

Keys = Sequence["pa.Array[Any]"]
PAGES_AT_ONCE = 1_024
"""16 MB of pages of the usual size."""
KEPT_VERSIONS = 4
"""Of which the places of pages are remembered, 8 bytes a page."""


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
        self._next_file = itertools.count()
        self._places: dict[str, Int64s] = {}
        self._changed_since: dict[str, Int64s] = {}
        self._kept: tuple[str, _Sorted] | None = None

    def use_current(self) -> str:
        """Identity of the version that is asked from now on."""
        if self._master is None or current_version(self._path) != self._master.version:
            self._open(MasterData.open(self._path))
        return self.master.identity

    @property
    def master(self) -> MasterData:
        return self._master if self._master is not None else self._open(MasterData.open(self._path))

    def _open(self, master: MasterData) -> MasterData:
        if self._master is not None:
            self._master.close()
        self._master = master
        known = self._files
        self._files = {f: known[f] if f in known else next(self._next_file) for f in master.manifest.files}
        self._keep_places(master)
        self._changed_since, self._kept = {}, None
        return master

    def _keep_places(self, master: MasterData) -> None:
        """Remember where the pages of a version lie: in files that the current one has too, or in others."""
        numbers = np.array([*(self._files.get(file, -1) for file in master.manifest.files), -1], np.int64)
        self._places[master.identity] = numbers[master.index.file] << 32 | master.index.offset
        others = [old for old in self._places if old != self.master.identity]
        for old in others[: -KEPT_VERSIONS + 1]:
            del self._places[old]

    def _is_known(self, identity: str) -> bool:
        """Whether the places of its pages are known: from before, or from disk while it is there."""
        if identity not in self._places:
            try:
                old = MasterData.open(self._path, int(identity.partition("-")[0]))
            except StoreError:
                return False  # expired since
            if old.identity == identity:  # else of another store, that was here before
                self._keep_places(old)
            old.close()
        return identity in self._places

    def codes(self, keys: Keys) -> Codes:
        form = self.master.key_form
        return Codes(form, *form.codes(keys))

    def found(self, keys: Callable[[], Keys], codes: Codes, since: str | None) -> Bools:
        """Where the master has a row for these keys.

        Args:
            keys: Gives the key columns of the rows; asked where codes are hashes, and only if one was met.
            codes: What `codes` gave for them under the form of this version.
            since: Identity of the version in which all of them were looked up in vain; None for never.
        """
        held = np.zeros(len(codes.codes), np.bool_)
        rows = np.flatnonzero(codes.present)
        if since is not None and self._is_known(since):
            pages = self._changed(since)
            if len(pages) <= PAGES_AT_ONCE:  # read once, then asked for all rows that wait
                self._mark(held, keys, codes, rows, self._kept_pages(since, pages))
                return held
        first, count = self.master.locate(codes.codes[rows])
        pages = self._pages(first, count)
        for at in range(0, len(pages), PAGES_AT_ONCE):
            some = _Sorted.of(self.master.gather_rows(pages[at : at + PAGES_AT_ONCE]))
            self._mark(held, keys, codes, rows, some)
        return held

    def _mark(
        self, held: Bools, keys: Callable[[], Keys], codes: Codes, rows: Int64s, stored: "_Sorted"
    ) -> None:
        if not len(stored.codes):
            return
        nearest = np.searchsorted(stored.codes, codes.codes[rows])
        place = np.minimum(nearest, len(stored.codes) - 1)
        same = stored.codes[place] == codes.codes[rows]
        rows, place = rows[same], place[same]
        if codes.form.is_hashed and len(rows):
            # No two keys of a store share a code, so the first row of a code speaks for all of them.
            real = self.master.layout.decode(stored.pages.buffer, stored.at[place])
            mine = [column.take(rows) for column in keys()]
            rows = rows[codes.form.same(mine, [real.column(name) for name in codes.form.columns])]
        held[rows] = True

    def _kept_pages(self, since: str, pages: Int64s) -> "_Sorted":
        if self._kept is None or self._kept[0] != since:
            self._kept = since, _Sorted.of(self.master.gather_rows(pages))
        return self._kept[1]

    def _pages(self, first: Int64s, count: Int64s) -> Int64s:
        """Numbers of all pages that are named, each once."""
        edges = np.zeros(self.master.pages + 1, np.int64)
        np.add.at(edges, first, 1)
        np.add.at(edges, first + count, -1)
        return np.flatnonzero(np.cumsum(edges[:-1]))

    def _changed(self, since: str) -> Int64s:
        """Pages of this version that version `since` did not have."""
        if since not in self._changed_since:
            is_new = ~np.isin(self._places[self.master.identity], self._places[since])
            self._changed_since[since] = np.flatnonzero(is_new)
        return self._changed_since[since]


@dataclass(frozen=True)
class _Sorted:
    """Rows of some pages in order of code."""

    pages: PageRows
    codes: Int64s
    at: Int64s

    @classmethod
    def of(cls, pages: PageRows) -> "_Sorted":
        order = np.argsort(pages.codes, kind="stable")
        return cls(pages, pages.codes[order], pages.at[order])


__all__ = ["Codes", "KeyLookup", "Keys"]
