"""Seconds that the joins' own parts take for one row, timed in memory."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.join.output import OutputPlan
from tidemill.join.parts.arrivals import Arrivals
from tidemill.join.parts.hot_rows import HotRows
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.row_cache import RowCache
from tidemill.join.parts.waiting_room import WaitingRoom
from tidemill.join.parts.window import Window
from tidemill.master import MasterData
from tidemill.master.rows import RowLayout
from tidemill.model.work import ReadCurve

TABLE_BYTES = (2**16, 2**20, 2**23, 2**26)
BATCH_ROWS = 4096
_LEAST_SECONDS = 0.15
_LEAST_RUNS = 5
_SLOT_BYTES = 16


def seconds_of(call: Callable[[], object]) -> float:
    """Of a run that others on the machine did not disturb much: a quarter are faster.

    The first run, which may compile or fill a cache, does not count.
    """
    call()
    runs: list[float] = []
    while sum(runs) < _LEAST_SECONDS or len(runs) < _LEAST_RUNS:
        started = time.perf_counter()
        call()
        runs.append(time.perf_counter() - started)
    return float(np.percentile(runs, 25))


def probe_curve() -> ReadCurve:
    """Seconds of a lookup by the bytes of the table, for codes in no order."""
    random, seconds = np.random.default_rng(7), []
    found = np.empty(2 * BATCH_ROWS, dtype=np.int64)
    for table_bytes in TABLE_BYTES:
        keys = np.arange(int(table_bytes / _SLOT_BYTES / 1.5))
        ones = np.ones(len(keys), dtype=np.int64)
        payload = pa.RecordBatch.from_arrays([pa.array(keys)], ["code"])
        table = HotRows.build(keys, ones, ones.astype(np.uint32), payload, "")
        asked = random.integers(0, 2 * len(keys), (32, len(found)))  # other ones each time: no help by caches

        def probe(table: HotRows = table, asked: Int64s = asked) -> None:
            for codes in asked:
                table.probe(codes)

        seconds.append(seconds_of(probe) / asked.size)
    return ReadCurve(sizes=(0.0, *map(float, TABLE_BYTES)), read_seconds=(seconds[0], *seconds))


@dataclass(frozen=True)
class RowSeconds:
    """Of one row each."""

    stream: float
    add: float
    remove: float
    output: float
    hot_change: float


@dataclass(frozen=True)
class Sample:
    """Master rows of a store and stream rows that ask for them."""

    master: MasterData
    plan: OutputPlan
    stream: pa.RecordBatch
    pages: pa.RecordBatch
    """Pages as columns."""
    rows: Int64s
    """Of these, asked for by the stream in this order."""

    @property
    def codes(self) -> Int64s:
        return stream_keys(self.stream, self.plan.stream_key)[0]

    def stream_seconds(self) -> float:
        """Taken, its key found, and the page in which that lies."""

        def take() -> None:
            arrivals = Arrivals(2 * self.stream.nbytes + 100 * self.stream.num_rows, 20)
            arrivals.add(self.stream)
            batch = arrivals.take(self.stream.num_rows)
            self.master.locate(stream_keys(batch, self.plan.stream_key)[0])

        return seconds_of(take) / self.stream.num_rows

    def of_columns(self) -> RowSeconds:
        """For joins that make columns of all that they read."""
        count, everyone = self.stream.num_rows, np.arange(self.stream.num_rows)
        columns = list(self.plan.chosen_columns)
        window = Window(4 * count, 64 * self.stream.nbytes, self.plan.stream_schema)

        def add() -> None:
            window.add(self.stream.take(everyone), self.codes, 1)

        def add_and_remove() -> None:
            add()
            window.mark(np.arange(window.oldest, window.next_number))
            window.let_go(window.next_number)

        def put_out() -> None:
            found = self.pages.select(columns).take(self.rows)
            self.plan.assemble(self.stream.take(everyone), found, None)

        both, alone = seconds_of(add_and_remove), seconds_of(self._added)
        hot_change = self._merge_seconds(columns)
        return RowSeconds(
            self.stream_seconds(),
            alone / count,
            max(0.0, both - alone) / count,
            seconds_of(put_out) / count,
            hot_change,
        )

    def _added(self) -> None:
        window = Window(self.stream.num_rows, 64 * self.stream.nbytes, self.plan.stream_schema)
        window.add(self.stream.take(np.arange(self.stream.num_rows)), self.codes, 1)

    def _merge_seconds(self, columns: list[str]) -> float:
        """Of a key that comes or goes where one in four does; those that stay are copied too."""
        payload = self.pages.select(columns).take(np.unique(self.rows))
        keys, ones = np.arange(payload.num_rows), np.ones(payload.num_rows, dtype=np.int64)
        hot = HotRows.build(keys, ones, ones.astype(np.uint32), payload, "")
        stays = keys % 4 > 0
        new = np.flatnonzero(~stays)
        counts = ones.astype(np.uint32)

        def merge() -> None:
            hot.merged(stays, len(keys) + new, ones[new], payload, new, counts)

        return seconds_of(merge) / max(1, 2 * len(new))

    def of_rows(self) -> RowSeconds:
        """For joins in which rows stay rows until they leave."""
        count = self.stream.num_rows
        layout = RowLayout.of(self.plan.stream_schema)
        regions = self.codes % 64
        stored = self.master.layout
        stream_rows, stream_at = layout.encode(self.stream)
        page = self.master.read_rows(0, min(self.master.pages, 64))
        chosen = np.random.default_rng(7).integers(0, len(page.at), count)
        row_bytes = self.master.stored_row_bytes

        def room() -> WaitingRoom:
            return WaitingRoom(256 * count, layout, 64, self.plan.stream_row_bytes)

        def add() -> WaitingRoom:
            waiting = room()
            waiting.push(self.codes, regions, *layout.encode(self.stream))
            return waiting

        def add_and_remove() -> None:
            waiting = add()
            slots, _ = waiting.pop(np.arange(64))
            waiting.release(slots)

        def put_out() -> None:
            found = stored.decode(page.buffer, page.at[chosen], self.plan.chosen_columns)
            self.plan.assemble(layout.decode(stream_rows, stream_at[:-1]), found, None)

        def admit() -> RowCache:
            cache = RowCache(2 * len(page.at) * (row_bytes + 40), row_bytes, stored, keeps_rows=True)
            ones = np.ones(len(page.at), dtype=np.int64)
            met = np.full(len(page.at), 9, dtype=np.uint32)
            cache.admit(page.buffer, page.at, np.arange(len(page.at)), ones, page.codes, met)
            return cache

        changes = 2 * max(1, admit().entries // 4)
        build = seconds_of(admit)
        renew = seconds_of(lambda: admit().renew()) - build
        alone, empty = seconds_of(add), seconds_of(room)
        return RowSeconds(
            self.stream_seconds(),
            max(0.0, alone - empty) / count,
            max(0.0, seconds_of(add_and_remove) - alone) / count,
            seconds_of(put_out) / count,
            build / max(1, admit().entries) / 2 + max(0.0, renew) / changes,
        )


__all__ = ["BATCH_ROWS", "RowSeconds", "Sample", "probe_curve", "seconds_of"]
