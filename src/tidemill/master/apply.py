"""A new version from changes: the pages that they touch are merged with them, all others are referred to.

```
old index   ▢ ▢ ▣ ▢ ▣ ▣ ▢       ▣ touched: read, rows that go left out, new rows put in, written to a file of the new version
             │ │  └─┐ │ │  │       ▢ untouched: the new index names the old file
new index   ▢ ▢ ▣ ▣ ▢ ▣ ▢       a stretch of touched neighbours may come out as more pages, fewer, or none
```
The work is that of the touched pages, and 16 bytes a page for the new index.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tidemill.core.errors import SpecError, StoreError
from tidemill.master.build import Progress
from tidemill.master.changed_codes import write_changed
from tidemill.master.changes import Changes, read_changes, refuse_collision
from tidemill.master.hashing import Bools, Int64s
from tidemill.master.history_changes import read_history_changes
from tidemill.master.index import PageIndex
from tidemill.master.layout import PAGES_FILE, current_version
from tidemill.master.new_version import NewVersion, new_version, packed_facts, write_derived
from tidemill.master.packing import Packing
from tidemill.master.page_writer import PageWriter
from tidemill.master.reads import PageRows, stretches
from tidemill.master.rows import RowLayout
from tidemill.master.source import Source

if TYPE_CHECKING:
    from tidemill.master.store import MasterData

_CHUNK_BLOCKS = 1024  # 4 MiB of touched pages at a time: larger ones leave the cache and gain nothing


def apply_changes(
    master: "MasterData",
    source: Source,
    operation: str,
    progress: Progress | None,
    positions: Mapping[str, int] | None = None,
) -> int:
    """The number of the version that holds the changes, current from now on; arguments as `MasterData.apply` has them."""
    refuse_given_order(master)
    if master.history is None:
        changes = read_changes(source, master.key_form, master.schema, operation)
    else:
        changes = read_history_changes(source, master, master.history, operation)
    packing = master.packing.holding(changes.rows)
    if not packing.lies_as(master.packing):
        master = master.repacked(packing)
    with new_version(master.path) as version:
        refuse_stale(master)
        merge = _Merge(master, changes, version, packing)
        with merge.writer:
            for done in merge.chunks():
                if progress is not None:
                    progress(done, len(merge.touched))
        write_changed(version.folder, version.number, made_from=master.version, codes=changes.codes)
        merge.finish(version, dict(positions or {}))
    return version.number


def refuse_given_order(master: "MasterData") -> None:
    """Stop when the pages are not in order of key."""
    if master.page_order != "key":
        raise SpecError(
            f"pages of {master.path} are in a given order, in which new rows have no place",
            code="given_order",
            next_move="build the master data again, or keep it in order of key",
        )


def refuse_stale(master: "MasterData") -> None:
    """Stop when another version has become current: what it changed would be lost."""
    current = current_version(master.path)
    if current != master.version:
        raise StoreError(
            f"version {current} of {master.path} is current, this handle has version {master.version}",
            code="stale_version",
            next_move="open the store again and repeat",
            retryable=True,
            version=master.version,
            current=current,
        )


@dataclass
class _Counts:
    rows: int
    distinct_keys: int
    most_rows_of_a_key: int
    """At most so many: a key that loses rows does not lower it."""
    row_bytes: float
    """Of all rows; those that go count as the average does."""


class _Merge:
    """Touched pages and changes on their way into a new pages file."""

    def __init__(self, master: "MasterData", changes: Changes, version: NewVersion, packing: Packing) -> None:
        told = master.manifest
        self._packing = packing
        self._layout = RowLayout.of(master.schema, first=master.key, packing=packing)
        self.writer = PageWriter(
            version.folder / PAGES_FILE, self._layout, told.page_bytes, number=len(told.files)
        )
        self._master = master
        self._changes = changes
        first, self._page_count = master.index.locate(changes.codes)
        last_page = max(0, master.pages - 1)
        # New rows go behind those that their key has: into its last page, or the one that spans it.
        self._target = np.clip(first + np.maximum(self._page_count, 1) - 1, 0, last_page)
        self.touched = _union(
            np.where(changes.replaces, np.minimum(first, self._target), self._target), self._target
        )
        self._counts = _Counts(
            told.rows, told.distinct_keys, told.most_rows_of_a_key, float(told.row_bytes) * told.rows
        )
        self._is_replaced = np.zeros(master.pages, dtype=np.bool_)
        self._origin: list[Int64s] = []
        self._last_code: list[Int64s] = []

    def chunks(self) -> Iterator[int]:
        """Merge a chunk of touched pages at a time; the number done so far."""
        if self._master.pages == 0:
            self._merge(self.touched[:0], 0, len(self._changes.codes))
            return
        begin = np.concatenate([[0], np.cumsum(self._master.index.blocks[self.touched], dtype=np.int64)])
        none = np.zeros(max(0, len(self.touched) - 1), dtype=np.bool_)
        for first, end in stretches(none, begin, _CHUNK_BLOCKS):
            pages = self.touched[first:end]
            codes = np.searchsorted(self._target, [pages[0], pages[-1] + 1])
            self._merge(pages, int(codes[0]), int(codes[1]))
            yield end

    def finish(self, version: NewVersion, positions: dict[str, int]) -> None:
        """Write index and manifest."""
        told, counts = self._master.manifest, self._counts
        index = _with_pages(
            self._master.index,
            self._is_replaced,
            self.writer.index(),
            np.concatenate([self.touched[:0], *self._origin]),
            np.concatenate([self.touched[:0], *self._last_code]),
        )
        files = [*told.files, self.writer.finished(version.pages_name)]
        used, file = np.unique(index.file, return_inverse=True)
        if len(told.files) not in used:
            (version.folder / PAGES_FILE).unlink()
        packed = packed_facts(self._packing, self.writer, version.folder)
        packed["stored_row_bytes"] = told.stored_row_bytes
        write_derived(
            version,
            replace(told, positions=told.positions | positions),
            replace(index, file=file.astype(np.uint16)),
            [files[number] for number in used.tolist()],
            rows=counts.rows,
            distinct_keys=counts.distinct_keys,
            most_rows_of_a_key=counts.most_rows_of_a_key if counts.rows else 0,
            most_rows_of_a_page=max(told.most_rows_of_a_page, self.writer.most_rows_of_a_page),
            row_bytes=-(-int(counts.row_bytes) // max(1, counts.rows)),
            **packed,
        )

    def _merge(self, pages: Int64s, first_code: int, end_code: int) -> None:
        """Write what becomes of these pages and of the changes whose new rows belong into them."""
        layout, part = self._layout, self._changes.part(first_code, end_code)
        target, page_count = (column[first_code:end_code] for column in (self._target, self._page_count))
        old = self._master.gather_rows(pages)
        goes = self._going(old)
        self._count(old, goes, part, page_count)
        encoded, new_at = layout.encode(part.rows)
        # A stretch of neighbours is known by its first page.
        is_first = np.append(True, np.diff(pages) != 1)[: len(pages)]
        stretch = pages[is_first][np.cumsum(is_first) - 1]
        old_stretch = np.repeat(stretch, np.diff(old.page_start))
        new_stretch = np.repeat(
            stretch[np.searchsorted(pages, target)] if len(pages) else target, part.rows_of_code
        )
        changed = np.union1d(old_stretch[goes], new_stretch)
        self._is_replaced[pages[np.isin(stretch, changed)]] = True
        stays = ~goes & np.isin(old_stretch, changed)
        old_at, behind = old.at[stays], old.buffer.nbytes
        old_end = old_at + layout.sizes(old.buffer, old_at)
        place = np.searchsorted(old.codes[stays], np.repeat(part.codes, part.rows_of_code), side="right")
        merged = np.insert(old_stretch[stays], place, new_stretch)
        codes, page = self.writer.add_rows(
            np.concatenate([old.buffer, encoded]),
            np.insert(old_at, place, new_at[:-1] + behind),
            np.insert(old_end, place, new_at[1:] + behind),
            stretch=merged,
        )
        is_last = np.append(page[1:] != page[:-1], True)[: len(page)]
        self._origin.append(merged[is_last])
        self._last_code.append(codes[is_last])

    def _going(self, old: PageRows) -> Bools:
        """Which rows the changes remove; a `StoreError` when a change has the code of another key."""
        changes, form = self._changes, self._master.key_form
        at = np.minimum(np.searchsorted(changes.codes, old.codes), len(changes.codes) - 1)
        is_named = changes.codes[at] == old.codes
        if form.is_hashed:
            once = np.flatnonzero(is_named & np.append(True, old.codes[1:] != old.codes[:-1])[: len(at)])
            stored = self._master.layout.decode(old.buffer, old.at[once], list(form.columns))
            refuse_collision(form, stored, changes.keys.take(at[once]))
        goes: Bools = is_named & changes.replaces[at]
        return goes

    def _count(self, old: PageRows, goes: Bools, part: Changes, page_count: Int64s) -> None:
        counts, told, added = self._counts, self._master.manifest, part.rows_of_code
        end = np.searchsorted(old.codes, part.codes, side="right")
        had = end - np.searchsorted(old.codes, part.codes, side="left")
        stays = (had > 0) & ~part.replaces
        counts.distinct_keys += int((stays | (added > 0)).sum()) - int((had > 0).sum())
        # Of a key over several pages only the last one was read, unless its rows go.
        before = np.where(page_count > 1, told.most_rows_of_a_key, had)
        most = added + np.where(part.replaces, 0, before)
        counts.most_rows_of_a_key = max(counts.most_rows_of_a_key, int(most[added > 0].max(initial=0)))
        gone = int(goes.sum())
        counts.row_bytes += part.rows.nbytes - gone * told.row_bytes
        counts.rows += part.rows.num_rows - gone


def _union(first: Int64s, last: Int64s) -> Int64s:
    """Every number from `first` to `last` of any pair, once.

    >>> _union(np.array([2, 4, 9]), np.array([5, 6, 9])).tolist()
    [2, 3, 4, 5, 6, 9]
    """
    marks = np.zeros(int(last.max(initial=-1)) + 2, dtype=np.int64)
    np.add.at(marks, first, 1)
    np.add.at(marks, last + 1, -1)
    return np.flatnonzero(np.cumsum(marks) > 0)


def _with_pages(
    old: PageIndex, is_replaced: Bools, new: PageIndex, origin: Int64s, last_code: Int64s
) -> PageIndex:
    """The old index with new pages in the place of those replaced.

    Args:
        old: Of the version before.
        is_replaced: Which of its pages go.
        new: Of the new pages.
        origin: First of the replaced neighbours in whose place each new page comes.
        last_code: With which each new page ends.
    """
    if old.pages == 0:
        return new
    stays = np.flatnonzero(~is_replaced)
    number = np.concatenate([stays, origin])
    order = np.argsort(number, kind="stable")
    number, is_new = number[order], order >= len(stays)
    first, offset, file, blocks = (
        np.concatenate([getattr(old, name)[stays], getattr(new, name)]).astype(np.int64)[order]
        for name in ("first_code", "offset", "file", "blocks")
    )
    last = np.concatenate([np.zeros_like(stays), last_code])[order]
    # Behind a new page its last code tells. Behind an old one the old index does, as long as it is the same neighbour
    # and the page begins with the same code; no other code can reach over the edge, or the old page were touched.
    is_neighbour = number == np.roll(number, 1) + 1
    as_before = is_neighbour & old.continues[number] & (first == old.first_code[number])
    continues = np.where(np.roll(is_new, 1), first == np.roll(last, 1), as_before)
    continues[:1] = False
    end = int(last[-1]) if len(last) and is_new[-1] else old.last_code
    return PageIndex.of(first, offset, file, blocks, continues, end)


__all__ = ["apply_changes", "refuse_given_order", "refuse_stale"]
