"""The reader's view of a parking: which rows wait, which are due, and the next release.

Work at a trigger is bounded: a call seals one release of bounded size and looks keys up for a bounded time, parts that
were looked up longest ago first. So rows that wait, however many, do not hold up those that flow. What is remembered of
a waiting row is its code (8 bytes, up to a limit) and, once others of its part have left, its number (4 bytes).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.files import sync_folder
from tidemill.master.batches import one_batch
from tidemill.spark.failpoint import die_if_told
from tidemill.spark.late import PARKED_AT_COLUMN
from tidemill.spark.parking_lookup import Codes, KeyLookup, Keys
from tidemill.spark.parking_parts import SEGMENTS, Part, Segment, aligned, read_content, read_segment
from tidemill.spark.parking_releases import (
    RELEASES,
    Int32s,
    files_in_use,
    first_release,
    fold,
    read_committed,
    read_folded,
    read_release,
    release_file,
    remove_release,
    taken_by,
    taken_by_folded,
    write_committed,
    write_release,
)

LOOKUP_SECONDS = 0.05
"""At a trigger; the next one goes on."""
FIRST_LOOKUP_US = 1_000_000
"""After a part was written: its batch has just looked. Without it, rows that a join still sees an older version
for would come back at every trigger."""
MOST_KEPT_CODES = 8_000_000
FOLD_EVERY = 64
"""Releases; until then they stay as files."""
ORPHAN_SECONDS = 24 * 3600
"""Younger files may be those of a task that still runs."""


@dataclass
class Waiting:
    """A part and those of its rows that have not left."""

    part: Part
    look_from_us: int
    oldest_us: int
    """No row that waits was parked before."""
    rows: Int32s | None = None
    """Numbers of rows that wait; None for all."""
    codes: Codes | None = None
    """Of the rows that wait."""
    looked_in: str | None = None
    """Identity of the master version in which none of them was found."""

    @property
    def count(self) -> int:
        return self.part.rows if self.rows is None else len(self.rows)

    def numbers(self) -> Int32s:
        return np.arange(self.part.rows, dtype=np.int32) if self.rows is None else self.rows

    def take_out(self, gone: Int32s) -> None:
        stays = ~np.isin(self.numbers(), gone)
        self.rows = self.numbers()[stays]
        self.codes = self.codes.at(stays) if self.codes is not None else None


class Lot:
    """What one reader knows of a parking; everything in it can be read from disk again."""

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        lookup: KeyLookup,
        *,
        on: tuple[str, ...],
        deadline_ms: int,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._segments_folder, self._releases_folder = path / SEGMENTS, path / RELEASES
        self._schema = schema
        self._lookup = lookup
        self._on = on
        self._deadline_us = deadline_ms * 1000
        self._now_us = now_us
        self._frozen_us: int | None = None
        self._segments: dict[str, Segment] = {}
        self._waiting: dict[str, Waiting] = {}
        self._waiting_rows = 0
        self._listed_at_ns = (0, 0)
        folded = read_folded(self._releases_folder)
        self.last_release, self._released, self._expired = folded.number, folded.released, folded.expired
        self._first_release = first_release(self._releases_folder)
        self._committed = read_committed(self._releases_folder)
        self._list_segments()
        self._take_out(taken_by_folded(self._releases_folder, folded))
        self._absorb()
        self._remove_orphans()

    def freeze(self) -> None:
        """Take what is due now as all that will be due: for a run that ends when it has read what there is."""
        self._frozen_us = None
        self._list_segments()
        self._lookup.use_current()
        self._frozen_us = self._now_us()

    def next_release(self, after: int, max_rows: int) -> int:
        """The number after `after` if a release with it is sealed by now, else `after`."""
        self._absorb()
        if after > self.last_release:
            raise StoreError(
                f"the checkpoint has seen release {after}, the parking has {self.last_release}",
                code="foreign_parking",
                next_move="give the checkpoint the parking it was made with",
            )
        if after == self.last_release:
            self._list_segments()
            picks, expired = self._due(max_rows)
            if picks:
                self._seal(picks, expired)
        return min(after + 1, self.last_release)

    def commit(self, number: int) -> None:
        """Spark is done with releases up to this one: it will never read them again."""
        if number <= self._committed:
            return
        write_committed(self._releases_folder, number)
        self._committed = number
        if number - self._first_release >= FOLD_EVERY:
            self._clean_up()

    def _due(self, max_rows: int) -> tuple[dict[str, Int32s], int]:
        """Rows by part that come back now, and how many of them for their deadline."""
        now = self._frozen_us or self._now_us()
        picks: dict[str, Int32s] = {}
        room = max_rows
        for waiting in [w for w in self._waiting.values() if w.oldest_us + self._deadline_us <= now]:
            rows = self._take_overdue(waiting, now, room)
            if len(rows):
                picks[waiting.part.file] = rows
                room -= len(rows)
            if not room:
                break
        expired = max_rows - room
        if not self._waiting or not room:
            return picks, expired
        version = self._lookup.master.identity if self._frozen_us else self._lookup.use_current()
        stale = [w for w in self._waiting.values() if w.looked_in != version and w.look_from_us <= now]
        until = time.monotonic() + LOOKUP_SECONDS
        for waiting in stale:
            if waiting.part.file in picks:
                continue
            rows = self._found_rows(waiting)
            if len(rows):
                picks[waiting.part.file] = rows[:room]
            if len(rows) <= room:
                waiting.looked_in = version
                self._waiting[waiting.part.file] = self._waiting.pop(waiting.part.file)  # last in the queue
            room -= min(room, len(rows))
            if not room or (time.monotonic() > until and not self._frozen_us):
                break
        return picks, expired

    def _take_overdue(self, waiting: Waiting, now: int, room: int) -> Int32s:
        numbers = waiting.numbers()
        parked_us = self._read(waiting.part).column(PARKED_AT_COLUMN).cast(pa.int64()).to_numpy()[numbers]
        taken = np.flatnonzero(parked_us + self._deadline_us <= now)[:room]
        waiting.oldest_us = int(np.delete(parked_us, taken).min(initial=np.iinfo(np.int64).max // 2))
        return numbers[taken]

    def _found_rows(self, waiting: Waiting) -> Int32s:
        numbers = waiting.numbers()
        form = self._lookup.master.key_form
        codes = waiting.codes if waiting.codes is not None and waiting.codes.form == form else None

        def keys() -> Keys:
            batch = self._read(waiting.part)
            return [batch.column(name).take(numbers) for name in self._on]

        if codes is None:
            codes = self._lookup.codes(keys())
            waiting.codes = codes if self._waiting_rows <= MOST_KEPT_CODES else None
        return numbers[self._lookup.found(keys, codes, waiting.looked_in)]

    def _seal(self, picks: dict[str, Int32s], expired: int) -> None:
        pieces = {}
        for file, rows in picks.items():
            taken = self._read(self._waiting[file].part).take(rows)
            pieces[file] = aligned(taken, self._schema), rows
        die_if_told("before_release")
        sealed = write_release(
            self._releases_folder,
            self.last_release + 1,
            pieces,
            self._schema,
            released=self._released,
            expired=self._expired + expired,
        )
        die_if_told("after_release")
        if not sealed:  # another reader was first: what it took is taken out next, the rest is looked at anew
            for file in picks:
                waiting = self._waiting[file]
                waiting.looked_in, waiting.oldest_us = None, waiting.part.oldest_parked_us
        self._absorb()

    def _absorb(self) -> None:
        """Take out what releases took that were sealed since, by whom ever."""
        while release_file(self._releases_folder, self.last_release + 1).exists():
            release = read_release(self._releases_folder, self.last_release + 1)
            if any(file not in self._waiting for file in release.taken):
                self._list_segments()
            self._take_out(taken_by(self._releases_folder, release))
            self.last_release = release.number
            self._released, self._expired = release.released, release.expired

    def _take_out(self, taken: dict[str, Int32s]) -> None:
        for file, rows in taken.items():
            waiting = self._waiting.get(file)  # None: its segment has gone since
            if waiting is not None:
                self._waiting_rows -= waiting.count
                waiting.take_out(rows)
                self._waiting_rows += waiting.count
                if not waiting.count:
                    del self._waiting[file]

    def _list_segments(self) -> None:
        if self._frozen_us:
            return
        changed_ns = self._segments_folder.stat().st_mtime_ns
        seen_ns, listed_ns = self._listed_at_ns
        if changed_ns == seen_ns and listed_ns - seen_ns > 100_000_000:  # a file system's clock ticks in 4 ms
            return
        self._listed_at_ns = changed_ns, time.time_ns()
        names = {file.name for file in self._segments_folder.glob("*.json")}
        for name in sorted(names - self._segments.keys()):
            segment = self._segments[name] = read_segment(self._segments_folder / name)
            for part in segment.parts:
                look_from_us = segment.written_us + FIRST_LOOKUP_US
                self._waiting[part.file] = Waiting(
                    part, look_from_us, part.oldest_parked_us, looked_in=segment.looked_in
                )
            self._waiting_rows += segment.rows

    def _read(self, part: Part) -> pa.RecordBatch:
        return one_batch(list(read_content(self._segments_folder, part)), self._schema)

    def _clean_up(self) -> None:
        """Remove segments that hold nothing more, then releases that Spark is done with.

        In this order: what was taken from a segment is forgotten when the segment has gone for good, never before.
        The last segment of a query stays, since its batch may be re-run and must find that it has parked already.
        """
        newest = {s.query_id: s.batch_id for s in sorted(self._segments.values(), key=lambda s: s.batch_id)}
        empty = [
            segment
            for segment in self._segments.values()
            if segment.batch_id != newest[segment.query_id]
            and not any(part.file in self._waiting for part in segment.parts)
        ]
        for segment in empty:
            (self._segments_folder / segment.name).unlink(missing_ok=True)
            del self._segments[segment.name]
        sync_folder(self._segments_folder)
        die_if_told("before_fold")
        for part in (part for segment in empty for part in segment.parts):
            (self._segments_folder / part.file).unlink(missing_ok=True)
        fold(self._releases_folder, self.last_release, self._released, self._expired, self._taken())
        for number in range(self._first_release, self._committed + 1):
            remove_release(self._releases_folder, number)
        self._first_release = self._committed + 1

    def _taken(self) -> dict[str, Int32s]:
        """Rows that have left parts which are still on disk."""
        taken = {}
        for part in (part for segment in self._segments.values() for part in segment.parts):
            waiting = self._waiting.get(part.file)
            if waiting is None or waiting.rows is not None:
                stays = waiting.numbers() if waiting is not None else np.empty(0, np.int32)
                taken[part.file] = np.delete(np.arange(part.rows, dtype=np.int32), stays)
        return taken

    def _remove_orphans(self) -> None:
        """Remove files that no record names: of tasks that died, or that were second."""
        kept = {part.file for segment in self._segments.values() for part in segment.parts}
        kept |= files_in_use(self._releases_folder)
        for folder in (self._segments_folder, self._releases_folder):
            for file in [*folder.glob("*.arrow"), *folder.glob(".*.tmp")]:
                if file.name not in kept and time.time() - file.stat().st_mtime > ORPHAN_SECONDS:
                    file.unlink(missing_ok=True)


__all__ = ["Lot"]
