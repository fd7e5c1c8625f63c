"""Which codes were hot, kept beside the master data, so that a new host begins where the others are."""

import os
import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from tidemill.core.files import write_atomically
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.leaving_kernels import find
from tidemill.join.parts.shared_cache import SharedRowCache
from tidemill.join.parts.shared_file import ToldCodes
from tidemill.join.parts.shared_sets import SharedSetCache
from tidemill.master import MasterData

FOLDER = "hot"
_TITLE = b"tidemill hot codes 2, %d bytes each\n"
_EVERY_SECONDS = 60.0
_FIRST_SECONDS = 1.0
"""After which a join tells for the first time, then after twice as long and so on: most that is popular is known soon."""
_TOLD_SHARE = 0.01
"""Of a worker's time, at most, for telling: many gigabytes of hot rows are not looked through each second."""
_CODES_AT_A_TIME = 2**16
_MOST_PAGES_AT_A_TIME = 64  # 1 MiB, as reads of the join are
_READS_AHEAD = 4
_BUFFERS = _READS_AHEAD + 4
"""In which the memory for reads is divided: those ahead, the one whose rows come in, the one before it, and codes of their rows."""
_MOST_SECONDS = 5.0
"""Of a task that waits for hot rows; on a slow disk the others become hot as they are met."""
_FILES_KEPT = 16
"""Of all who share the store: whoever begins reads its own, or the newest."""
_MET_OFTEN = 4  # so that a code stays for some renewals without a hit


@dataclass
class _Schedule:
    """When this process tells again."""

    wait_seconds: float
    tell_at: float


_schedules: dict[Path, _Schedule] = {}
"""Of each file: a join is opened anew for each version of its master data, and its file stays the same."""


class HotCodes:
    """The hot codes of one join, told by whoever runs it and read by whoever begins with none.

    Only a hint: a missing, old or damaged file means a cold start.

    Args:
        store: Folder of the master data.
        owner: Who shares them, such as a query.
    """

    def __init__(self, store: Path, owner: str) -> None:
        self._file = store / FOLDER / f"{owner}.codes"
        if self._file not in _schedules:
            _schedules[self._file] = _Schedule(_FIRST_SECONDS, time.monotonic() + _FIRST_SECONDS)
        self._schedule = _schedules[self._file]

    def tell(self, cache: SharedRowCache | SharedSetCache) -> None:
        """Write down what is hot: soon at first, then once a minute at most, and one process of a host for all."""
        began, schedule = time.monotonic(), self._schedule
        if began < schedule.tell_at or not cache.entries:
            return
        with cache.alone_in("telling") as is_mine:
            if is_mine and time.time() - _told_at(self._file) >= schedule.wait_seconds:
                self._write(cache.popular_codes())
        ended = time.monotonic()
        schedule.wait_seconds = min(2 * schedule.wait_seconds, _EVERY_SECONDS)
        schedule.tell_at = ended + max(schedule.wait_seconds, (ended - began) / _TOLD_SHARE)

    def _write(self, codes: ToldCodes) -> None:
        try:
            self._file.parent.mkdir(exist_ok=True)
            write_atomically(self._file, _TITLE % codes.itemsize, codes.data)
            self._forget_oldest()
        except OSError:  # a store that workers may not write to
            pass

    def read(self) -> ToldCodes | None:
        """The codes that were hot, ascending; those that another join on this data told last, where it has told nothing."""
        try:
            content = self._newest().read_bytes()
        except (OSError, ValueError):
            return None
        for kind in (np.int32, np.int64):
            each = np.dtype(kind).itemsize
            title = _TITLE % each
            if content.startswith(title) and not (len(content) - len(title)) % each:
                return np.frombuffer(content, kind, offset=len(title))
        return None

    def _newest(self) -> Path:
        """Its own file, or the newest of the others: what is popular for one stream mostly is for the next."""
        if self._file.exists():
            return self._file
        return max(self._file.parent.glob("*.codes"), key=_told_at)

    def _forget_oldest(self) -> None:
        for file in sorted(self._file.parent.glob("*.codes"), key=_told_at)[:-_FILES_KEPT]:
            file.unlink(missing_ok=True)


def _told_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # forgotten by another process meanwhile
        return 0.0


def warm_up(
    cache: SharedRowCache | SharedSetCache, master: MasterData, codes: ToldCodes, most_bytes: int
) -> int:
    """How many entries the cache has after the rows of these codes, ascending, were read.

    Args:
        cache: For the rows.
        master: Where they are read.
        codes: Of the rows.
        most_bytes: For what is read, at a time; a read of a page each is the least.
    """
    if master.page_order != "key" or not master.pages:
        return cache.entries
    pages_at_a_time = min(_MOST_PAGES_AT_A_TIME, most_bytes // (_BUFFERS * master.longest_page_bytes))
    until = time.monotonic() + _MOST_SECONDS
    for at in range(0, len(codes), _CODES_AT_A_TIME):
        some = np.unique(codes[at : at + _CODES_AT_A_TIME]).astype(np.int64)
        _read_some(cache, master, some, max(1, pages_at_a_time), until)
    return cache.entries


def _read_some(
    cache: SharedRowCache | SharedSetCache,
    master: MasterData,
    codes: Int64s,
    pages_at_a_time: int,
    until: float,
) -> None:
    first, count = master.locate(codes)
    here = np.flatnonzero(count == 1)  # a key over several pages is left to the join
    codes, first = codes[here], first[here]
    pages, begin = np.unique(first, return_index=True)
    begin = np.append(begin, len(codes))
    reads = (
        (at, master.begin_pages(pages[at : at + pages_at_a_time]))
        for at in range(0, len(pages), pages_at_a_time)
    )
    ahead = deque(islice(reads, _READS_AHEAD))
    while ahead and not cache.is_full and time.monotonic() < until:
        at, reading = ahead.popleft()
        read, edges = reading.result(), begin[at : at + pages_at_a_time + 1]
        ahead.extend(islice(reads, 1))
        wanted, rows = codes[edges[0] : edges[-1]], np.diff(edges)
        start, matches = np.empty((2, len(wanted)), dtype=np.int64)
        find(
            read.codes,
            np.repeat(read.page_start[:-1], rows),
            np.repeat(read.page_start[1:], rows),
            wanted,
            start,
            matches,
        )
        met = np.full(len(wanted), _MET_OFTEN, dtype=np.uint32)
        cache.admit(read.buffer, read.at, start, matches, wanted, met)


def hint_name(text: str) -> str:
    """A file name for whoever shares hot rows."""
    return "".join(letter if letter.isalnum() else "-" for letter in text)[:80] or str(os.getuid())


__all__ = ["HotCodes", "hint_name", "warm_up"]
