"""What `tide` does with arrivals: they meet hot rows, and leave or wait."""

from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.join.parts import sifting_kernels
from tidemill.join.parts.arrivals import Arrivals
from tidemill.join.parts.aside import Aside
from tidemill.join.parts.frequency import FrequencySketch
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.leaving import Leaving
from tidemill.join.parts.leaving_kernels import keep_known
from tidemill.join.parts.row_taker import RowTaker
from tidemill.join.parts.split import OFTEN
from tidemill.join.parts.split_join import SplitJoin
from tidemill.join.parts.tally import StepTally

MOST_PATIENCE = 16
"""Times half the room's rows that may pass while rows wait. At Zipf 1.25, where one row in 16 misses, a room that must be served
after half its rows is a quarter full, and four times as many bytes are read a row."""
_PIECE_ROWS = 24_576  # probed together: their hot rows fit the second-level cache while columns are gathered
_PIECES_OF_ARRIVALS = 3  # one leaves, one is probed, and one has come meanwhile


class Probed:
    """A piece of the stream that has met hot rows: where the match of each row lies, how many there are, bytes of them.

    A negative number of matches is a miss. After `close_up` only rows that leave are there, with their numbers in `known`.
    """

    def __init__(
        self, codes: Int64s, at: Int64s, matches: Int64s, sizes: Int64s, *, sources: Int64s | None
    ) -> None:
        self.codes, self.at, self.matches, self.sizes = codes, at, matches, sizes
        self.sources = sources
        """Where the stream's columns lie (`SideBySide.sources`)."""
        self.known = np.empty_like(at)
        self.until = 0
        """Rows that are settled: they leave or wait."""

    def close_up(self, until: int, known: int) -> None:
        self.until = until
        self.at, self.matches, self.sizes = self.at[:known], self.matches[:known], self.sizes[:known]
        self.known = self.known[:known]


class ProbeJoin(SplitJoin):
    """The stream's side of `tide`.

    Rows are probed in pieces. Those that hit a hot row leave together; those that miss are counted in a sketch and wait.
    """

    _arrivals: Arrivals
    _aside: Aside
    _sketch: FrequencySketch
    _taker: RowTaker
    _leaving: Leaving | None
    _miss_share: float
    _probed_since: int
    _given_of_first: int

    @property
    def _is_overdue(self) -> bool:
        """Whether rows wait although the room does not fill, since nearly all that arrive are hot."""
        patience = min(MOST_PATIENCE, 1 / self._miss_share)
        return 2 * self._probed_since > patience * self._room.most_rows and self._room.waiting_rows > 0

    # Arrivals meet hot rows.

    def _has_room(self) -> bool:
        """Whether the misses of another piece could wait."""
        wanted = max(1, min(self._room.most_rows // 8, int(_PIECE_ROWS * self._miss_share)))
        is_wide = self._room.free_rows >= wanted
        return is_wide and (self._room.can_resize or self._fitting_rows() > 0)

    def _lacks_room(self) -> bool:
        """Whether rows that arrived cannot be looked at before others leave."""
        return bool(self._arrivals.rows) and not self._has_room()

    def _fitting_rows(self) -> int:
        """Rows of the next piece: as many as could wait if no more of them missed than of late."""
        rows = min(self._piece_rows(), max(1, int(self._room.free_rows / self._miss_share)))
        if self._room.can_resize:  # rows are equally long: there is room for as many as there are slots
            return max(rows, int(self._room.waiting_rows == 0))
        row_bytes = self._arrivals.next_row_bytes() + 8 + self._room.layout.fixed_bytes
        while rows and not self._room.fits(
            int(rows * self._miss_share) or 1, int(rows * self._miss_share * row_bytes)
        ):
            rows //= 2
        # A row that may never wait is found out when it is tried with nobody else there.
        return max(rows, int(self._room.waiting_rows == 0))

    def _piece_rows(self) -> int:
        """Rows of the oldest batch in pieces of equal length; short ones, where one is probed while another leaves."""
        most = _PIECE_ROWS
        if self._aside.is_worth(self._arrivals.most_rows // _PIECES_OF_ARRIVALS):
            most = min(most, self._arrivals.most_rows // _PIECES_OF_ARRIVALS)
        rows = self._arrivals.next_rows
        return -(-rows // max(1, -(-rows // most)))

    def _probe(self, tally: StepTally) -> bool:
        """Let arrivals meet hot rows; False when there are none, or when their misses could not wait."""
        if self._resize_to is not None and self._may_resize(self._resize_to):
            self._resize(self._resize_to)
        if not self._arrivals.rows or self._resize_to is not None or not self._has_room() or self._is_overdue:
            return False
        if self._hot.is_full:
            with tally.timed("renew"):
                self._hot.renew()
        with tally.timed("probe"):
            batch = self._arrivals.peek(self._fitting_rows())
            codes, present = stream_keys(batch, self.plan.stream_key)
            if not self._master.pages:
                present = np.zeros_like(present)
            probed = Probed(codes, *self._hot.probe(codes, present), sources=self._beside.sources(batch))
        with tally.timed("wait"):
            misses = self._sift(probed) if self._may_sift(probed) else self._part(batch, probed)
        if probed.until == 0:
            if not self._room.waiting_rows:
                raise self._room.too_wide(batch.slice(0, 1), self.sizes.waiting_bytes)
            return False
        batch = self._arrivals.take(probed.until, beside_last=self._leaving is not None)
        self._probed_since += probed.until
        self._split.period.rows += probed.until
        self._split.period.misses += misses
        tally.counts["waited_rows"] += misses
        self._miss_share = min(1.0, max(0.02, 0.9 * self._miss_share + 0.11 * misses / probed.until))
        self._begin_leaving(batch, probed)
        self._look_at_split()
        return True

    # Misses wait.

    def _may_sift(self, probed: "Probed") -> bool:
        """Whether one compiled call does it all: rows of fixed length, without NULLs, in a store in order of key."""
        is_simple = self._room.can_resize and self._regions.are_in_key_order and not self._given_of_first
        return is_simple and probed.sources is not None

    def _sift(self, probed: "Probed") -> int:
        """How many rows missed and wait now."""
        assert probed.sources is not None
        found = (probed.at, probed.matches, probed.sizes, probed.known)
        result = self._room.sift(
            found, probed.codes, self._regions.first_code, self._sketch.counters, OFTEN, probed.sources
        )
        probed.close_up(int(result[sifting_kernels.UNTIL]), int(result[sifting_kernels.KNOWN]))
        misses = int(result[sifting_kernels.MISSES])
        self._count(misses, int(result[sifting_kernels.MET_AGAIN]))
        return misses

    def _part(self, batch: pa.RecordBatch, probed: "Probed") -> int:
        """As `_sift`, for rows of any kind."""
        codes, matches = probed.codes, probed.matches
        misses = np.flatnonzero(matches < 0)
        regions = self._regions.of(codes[misses])
        if (regions < 0).any():  # the index knows that these do not exist
            matches[misses[regions < 0]] = 0
            misses, regions = misses[regions >= 0], regions[regions >= 0]
        encoded, until = self._encode(batch, misses)
        misses = misses[misses < until]
        if len(misses):
            if misses[0] == 0 and self._given_of_first:
                self._given[self._room.next_slot] = self._given_of_first
                self._given_of_first = 0
            met = self._sketch.add(codes[misses])
            self._count(len(misses), int(np.count_nonzero(met > OFTEN)))
            self._room.push(codes[misses], regions[: len(misses)], *encoded)
        count = keep_known(probed.at[:until], matches[:until], probed.sizes[:until], probed.known)
        probed.close_up(until, count)
        return len(misses)

    def _count(self, misses: int, met_again: int) -> None:
        self._split.period.met_again += met_again
        self._counted += misses
        if self._counted > self._sketch.bytes_held // 2:
            self._sketch.halve()
            self._counted //= 2

    def _encode(self, batch: pa.RecordBatch, misses: Int64s) -> tuple[tuple[Any, Int64s], int]:
        """The misses as rows, as far as they can wait; and how many rows of the batch those concern."""
        fitting = len(misses)
        encoded, at = self._room.layout.encode(self._taker.take(batch, misses))
        while not self._room.fits(fitting, int(at[fitting])):
            fitting = (
                min(fitting - 1, self._room.free_rows) if fitting > self._room.free_rows else fitting // 2
            )
        until = batch.num_rows if fitting == len(misses) else int(misses[fitting])
        return (encoded, at[: fitting + 1]), until

    # The others leave.

    def _begin_leaving(self, batch: pa.RecordBatch, probed: "Probed") -> None:
        at, matches, sizes, known = probed.at, probed.matches, probed.sizes, probed.known
        if self.plan.stream_key.form.is_hashed:
            hit = np.flatnonzero(matches)
            met = self._are_met(batch.take(known[hit]), self._hot.rows, at[hit])
            matches[hit[~met]], at[hit[~met]], sizes[hit[~met]] = 0, -1, 0
        everyone = len(known) == batch.num_rows

        def gather(rows: Int64s) -> pa.RecordBatch:
            if everyone and len(rows) == batch.num_rows and bool((np.diff(rows) == 1).all()):
                return batch
            return self._taker.take(batch, known[rows])

        sources = probed.sources

        def put_together(rows: Int64s, at: Int64s, rows_bytes: int) -> pa.RecordBatch:
            assert sources is not None  # of the batch, which `gather` keeps
            hot, memory = self._hot.rows, self._hits_memory
            return self._beside.of_batch(sources, known[rows], hot, at, rows_bytes, memory)

        self._leaving = Leaving(
            self.plan, self._layout, self._hot.rows, at, matches, sizes, gather,
            stream_sizes=self._stream_sizes(batch, known), memory_from=self._hits_memory,
            put_together=None if sources is None else put_together, skip=self._given_of_first,
        )  # fmt: skip
        self._given_of_first = 0

    def _stream_sizes(self, batch: pa.RecordBatch, rows: Int64s) -> Int64s:
        """Bytes of some rows of a batch; one number when all are equally long."""
        layout = self._room.layout
        if layout.last_open_offset < 0:
            return np.array([layout.least_row_bytes])
        return np.diff(layout.encode(batch.take(rows))[1])


__all__ = ["MOST_PATIENCE", "ProbeJoin"]
