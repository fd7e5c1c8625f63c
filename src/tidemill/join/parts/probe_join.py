"""What `tide` does with arrivals: they meet hot rows, and leave or wait."""

from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.core.errors import InternalError
from tidemill.join.output import OutputPlan
from tidemill.join.parts import sifting_kernels
from tidemill.join.parts.arrivals import WORK_BYTES_PER_ROW
from tidemill.join.parts.frequency import FrequencySketch
from tidemill.join.parts.front import Front
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.leaving_join import LeavingJoin
from tidemill.join.parts.leaving_kernels import keep_known
from tidemill.join.parts.probed import Probed
from tidemill.join.parts.split import OFTEN
from tidemill.join.parts.split_join import has_single_rows
from tidemill.join.parts.tally import StepTally
from tidemill.master.protocol import Master

MOST_PATIENCE = 16
"""Times half the room's rows that may pass while rows wait. At Zipf 1.25, where one row in 16 misses, a room that must be served
after half its rows is a quarter full, and four times as many bytes are read a row."""
_PIECE_ROWS = 20_480  # probed together: their hot rows fit the second-level cache while columns are gathered


def may_meet(master: Master, plan: OutputPlan) -> bool:
    """Whether each code has one master row at most, which leaves as it was found."""
    return has_single_rows(master) and not plan.stream_key.form.is_hashed and plan.how in ("inner", "left")


class ProbeJoin(LeavingJoin):
    """The stream's side of `tide`.

    Rows are probed in pieces. Those that hit a hot row leave together; those that miss are counted in a sketch and wait.
    """

    _in_pieces: bool
    _sketch: FrequencySketch
    _front: Front | None
    _miss_share: float
    _probed_since: int
    _has_single_rows: bool
    _met_work_bytes: int
    """Of a row that `_may_meet` hot rows."""

    @property
    def _is_overdue(self) -> bool:
        """Whether rows wait although the room does not fill, since nearly all that arrive are hot."""
        patience = min(MOST_PATIENCE, 1 / self._miss_share)
        return 2 * self._probed_since > patience * self._room.most_rows and self._room.waiting_rows > 0

    # Arrivals meet hot rows.

    def _has_room(self, more_rows: int = 0) -> bool:
        """Whether the misses of another piece could wait, were there so many more free slots."""
        wanted = max(1, min(self._room.most_rows // 8, int(_PIECE_ROWS * self._miss_share)))
        is_wide = self._room.free_rows + more_rows >= wanted
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
        most = min(_PIECE_ROWS, self._arrivals.piece_rows) if self._in_pieces else _PIECE_ROWS
        rows = self._arrivals.next_rows
        return -(-rows // max(1, -(-rows // most)))

    def _probe(self, tally: StepTally) -> bool:
        """Let arrivals meet hot rows; False when there are none, or when their misses could not wait."""
        if self._resize_to is not None and self._may_resize(self._resize_to):
            self._see_off(self._departures.all(), tally)
            self._resize(self._resize_to)
        if not self._arrivals.rows or self._resize_to is not None or not self._has_room() or self._is_overdue:
            return False
        if self._hot.is_full:
            self._see_off(self._departures.all(), tally)  # hot rows move
            with tally.timed("renew"):
                self._hot.renew()
        front, begin = self._look_at_front(), self._arrivals.begun
        self._arrivals.work_bytes = self._met_work_bytes if self._may_meet(front) else WORK_BYTES_PER_ROW
        rows = min(self._fitting_rows(), self._arrivals.next_rows)
        while self._arrivals.fitting(rows) < rows and self._departures.hits_rows:
            self._see_off(self._departures.first(), tally)
        with tally.timed("probe"):
            piece = slice(begin, begin + self._arrivals.fitting(rows))
            met = self._meet_hot_rows(front, piece) if self._may_meet(front) else None
        probed, misses = met or self._probe_and_part(front, piece, tally)
        if probed.until == 0:
            if not self._room.waiting_rows:
                raise self._room.too_wide(self._arrivals.peek(1), self.sizes.waiting_bytes)
            return False
        self._arrivals.pass_by(probed.until, beside_others=self._departures.hits_rows > 0)
        if not self._arrivals.begun:
            self._front = None
        self._probed_since += probed.until
        self._split.period.rows += probed.until
        self._split.period.misses += misses
        tally.counts["waited_rows"] += misses
        self._miss_share = min(1.0, max(0.02, 0.9 * self._miss_share + 0.11 * misses / probed.until))
        if self._may_depart_at_once(probed):
            self._depart_at_once(front.batch, begin, probed)
        else:
            self._begin_leaving(front.batch.slice(begin, probed.until), probed)
        self._look_at_split()
        return True

    def _probe_and_part(self, front: Front, piece: slice, tally: StepTally) -> tuple[Probed, int]:
        """A piece of any kind, settled, and how many rows of it wait now."""
        codes, sources = front.codes[piece], front.sources(piece.start)
        with tally.timed("probe"):
            probed = Probed(*self._hot.probe(codes, front.present[piece]), sources=sources)
        with tally.timed("wait"):
            if sources is not None and self._may_sift():
                return probed, self._sift(codes, probed)
            return probed, self._part(front.batch.slice(piece.start, len(codes)), codes, probed)

    def _look_at_front(self) -> Front:
        batch = self._arrivals.front
        if self._front is None or self._front.batch is not batch:
            codes, present = stream_keys(batch, self.plan.stream_key)
            if not self._master.pages:
                present = np.zeros_like(present)
            self._front = Front(batch, codes, present, self._beside.sources(batch))
        return self._front

    def _may_meet(self, front: Front) -> bool:
        """Whether no code has several rows, and `_may_sift` says yes."""
        return self._has_single_rows and front.has_sources and self._may_sift()

    def _meet_hot_rows(self, front: Front, piece: slice) -> tuple[Probed, int]:
        """As `_probe_and_part` by one compiled call, where that may be."""
        sources = front.sources(piece.start)
        assert sources is not None, "_may_meet has said so"
        waits = (self._regions.first_code, self._sketch.counters, OFTEN, *self._room.ways_in(sources))
        met = self._hot.meet(front.codes[piece], front.present[piece], waits, self._room.free_rows)
        probed = Probed.of_met(met, sources)
        if not probed.is_one_each:
            raise InternalError(
                "a code has several hot rows, and one in the store", code="hot_rows_of_a_code"
            )
        return probed, self._count_misses(met.result)

    # Misses wait.

    def _may_sift(self) -> bool:
        """Whether one compiled call does it all for rows without NULLs: of fixed length, in a store in order of key."""
        return self._room.can_resize and self._regions.are_in_key_order and not self._given_of_first

    def _sift(self, codes: Int64s, probed: Probed) -> int:
        """How many rows missed and wait now."""
        assert probed.sources is not None
        known = np.empty_like(codes)
        found = (*probed.found, known)
        result = self._room.sift(
            found, codes, self._regions.first_code, self._sketch.counters, OFTEN, probed.sources
        )
        probed.close_up(int(result[sifting_kernels.UNTIL]), known[: int(result[sifting_kernels.KNOWN])])
        probed.tell(result)
        return self._count_misses(result)

    def _count_misses(self, result: Int64s) -> int:
        """How many rows wait now that were counted in the sketch."""
        misses = int(result[sifting_kernels.MISSES])
        self._count(misses, int(result[sifting_kernels.MET_AGAIN]))
        return misses

    def _part(self, batch: pa.RecordBatch, codes: Int64s, probed: Probed) -> int:
        """As `_sift`, for rows of any kind."""
        at, matches, sizes = probed.found
        misses = np.flatnonzero(matches < 0)
        regions = self._regions.of(codes[misses])
        if (regions < 0).any():  # the index knows that these do not exist
            matches[misses[regions < 0]] = 0
            misses, regions = misses[regions >= 0], regions[regions >= 0]
        encoded, until = self._encode(batch, misses)
        misses = misses[misses < until]
        if len(misses):
            met = self._sketch.add(codes[misses])
            self._count(len(misses), int(np.count_nonzero(met > OFTEN)))
            slots = self._room.push(codes[misses], regions[: len(misses)], *encoded)
            if misses[0] == 0 and self._given_of_first:
                self._given[int(slots[0])] = self._given_of_first
                self._given_of_first = 0
        known = np.empty_like(codes)
        count = keep_known(at[:until], matches[:until], sizes[:until], known)
        probed.close_up(until, known[:count])
        return len(misses)

    def _count(self, misses: int, met_again: int) -> None:
        self._split.period.met_again += met_again
        self._counted += misses
        if self._counted > 2 * self._sketch.width:
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


__all__ = ["MOST_PATIENCE", "ProbeJoin", "may_meet"]
