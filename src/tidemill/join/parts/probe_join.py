"""What `tide` does with arrivals: they meet hot rows, and leave or wait."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.core.errors import InternalError
from tidemill.join.output import OutputPlan
from tidemill.join.parts import sifting_kernels
from tidemill.join.parts.arrivals import WORK_BYTES_PER_ROW, Arrivals
from tidemill.join.parts.aside import Aside, Timed
from tidemill.join.parts.departures import Departure
from tidemill.join.parts.frequency import FrequencySketch
from tidemill.join.parts.front import Front
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.leaving import Leaving, count_fates
from tidemill.join.parts.leaving_kernels import PAIR_WORK_BYTES, keep_known
from tidemill.join.parts.leaving_once import LeavingOnce
from tidemill.join.parts.probed import Probed
from tidemill.join.parts.putter import Asked, Putter
from tidemill.join.parts.row_taker import RowTaker
from tidemill.join.parts.split import OFTEN
from tidemill.join.parts.split_join import SplitJoin
from tidemill.join.parts.tally import StepTally
from tidemill.master import MasterData
from tidemill.master.protocol import Master

MOST_PATIENCE = 16
"""Times half the room's rows that may pass while rows wait. At Zipf 1.25, where one row in 16 misses, a room that must be served
after half its rows is a quarter full, and four times as many bytes are read a row."""
_PIECE_ROWS = 24_576  # probed together: their hot rows fit the second-level cache while columns are gathered


def may_meet(master: Master, plan: OutputPlan) -> bool:
    """Whether each code has one master row at most, which leaves as it was found."""
    has_single_rows = isinstance(master, MasterData) and master.manifest.most_rows_of_a_key <= 1
    return has_single_rows and not plan.stream_key.form.is_hashed and plan.how in ("inner", "left")


class ProbeJoin(SplitJoin):
    """The stream's side of `tide`.

    Rows are probed in pieces. Those that hit a hot row leave together; those that miss are counted in a sketch and wait.
    """

    _arrivals: Arrivals
    _aside: Aside
    _in_pieces: bool
    _sketch: FrequencySketch
    _taker: RowTaker
    _front: Front | None
    _leaving: Leaving | LeavingOnce | None
    _miss_share: float
    _probed_since: int
    _given_of_first: int
    _hits_given_bytes: int
    _has_put_out: bool
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

    # The others leave.

    def _may_depart_at_once(self, probed: Probed) -> bool:
        """Whether another core puts rows together, there is memory for all of them, and each gives one pair at most."""
        if not probed.is_one_each or self.plan.stream_key.form.is_hashed:
            return False
        leaving_rows = {"left": len(probed.known), "inner": probed.matched}.get(self.plan.how, 0)
        if not leaving_rows or not self._has_put_out:
            return False
        return (
            self._aside.is_worth(len(probed.known)) and self._output_bytes_of(probed) <= self._left_hits_bytes
        )

    @property
    def _left_hits_bytes(self) -> int:
        """For output of hits that are handed over now."""
        return self._hits_bytes - self._hits_given_bytes - self._departures.hits_bytes

    def _output_bytes_of(self, probed: Probed) -> int:
        return probed.matches_bytes + len(probed.known) * self._pair_bytes

    @property
    def _pair_bytes(self) -> int:
        """Of output for a row that leaves, beside the bytes of its match as it is stored."""
        return self._room.layout.least_row_bytes + self._layout.grows_bytes + PAIR_WORK_BYTES

    def _depart_at_once(self, batch: pa.RecordBatch, begin: int, probed: Probed) -> None:
        """Let another core put hits together, without a look at each: of rows from `begin` on of a batch."""
        assert probed.sources is not None
        known, at = probed.known, probed.at
        if self.plan.how == "inner" and probed.matched < len(known):
            has_match = at >= 0
            known, at = known[has_match], at[has_match]
        put_out = self._beside.ask_batch(
            self._putter, batch, probed.sources, known, self._hot.rows, at, probed.matches_bytes, self._hits_memory,
            probed.matched,
        )  # fmt: skip
        all_known, until = probed.known, probed.until

        def stream_rows() -> pa.RecordBatch:
            return batch.slice(begin, until).take(all_known)

        output_bytes = self._output_bytes_of(probed)
        self._departures.add(
            Departure(put_out, len(all_known), probed.matched, output_bytes, stream_rows=stream_rows)
        )

    def _begin_leaving(self, batch: pa.RecordBatch, probed: Probed) -> None:
        # Where all of them never fit, two cores share them piece by piece.
        is_shared = (
            self._aside.is_worth(len(probed.known)) and self._output_bytes_of(probed) > self._hits_bytes
        )
        if probed.is_met and not is_shared:
            self._leaving = LeavingOnce(
                self.plan, self._layout, self._hot.rows, probed, self._room.layout.least_row_bytes, self._beside,
                self._hits_memory, batch,
            )  # fmt: skip
            return
        at, matches, known = probed.at, probed.matches, probed.known
        sizes = probed.sizes(self._layout, self._hot.rows)
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

        def ask(putter: Putter, rows: Int64s, at: Int64s, rows_bytes: int) -> Asked:
            assert sources is not None
            numbers = known if len(rows) == len(known) else known[rows]
            hot, memory = self._hot.rows, self._hits_memory
            return self._beside.ask_batch(putter, batch, sources, numbers, hot, at, rows_bytes, memory)

        self._leaving = Leaving(
            self.plan, self._layout, self._hot.rows, at, matches, sizes, gather,
            stream_sizes=self._stream_sizes(batch, known), memory_from=self._hits_memory,
            put_together=None if sources is None else put_together, ask=None if sources is None else ask,
            skip=self._given_of_first,
        )  # fmt: skip
        self._given_of_first = 0

    def _let_leave(self, leaving: Leaving | LeavingOnce, tally: StepTally) -> bool:
        """Have another core put all hits together as soon as there is memory for them; else put out some now: True."""
        output_bytes = leaving.whole_bytes
        is_worth = output_bytes is not None and self._aside.is_worth(len(leaving.at))
        if is_worth and output_bytes is not None and output_bytes <= self._hits_bytes:
            if output_bytes <= self._left_hits_bytes:
                self._depart_hits(leaving, output_bytes)
            return False
        with tally.timed("assemble"):
            finished, outputs = leaving.put_out_beside(self._hits_bytes, self._aside)
        tally.outputs.extend(outputs)
        matched = leaving.matched_in(finished)
        self._count_hits(matched, finished.stop - finished.start, leaving.output_bytes, tally)
        if leaving.is_over:
            self._leaving = None
            self._arrivals.let_go()
        return True

    def _depart_hits(self, leaving: Leaving | LeavingOnce, output_bytes: int) -> None:
        put_out: Asked | Timed[pa.RecordBatch | None]
        put_out = leaving.ask_for_all(self._putter) or self._aside.begin(
            lambda: leaving.put_out(output_bytes)[1]
        )
        matched = leaving.matched_in(slice(0, len(leaving.at)))
        self._departures.add(
            Departure(
                put_out,
                len(leaving.at),
                matched,
                output_bytes,
                stream_rows=partial(leaving.stream_rows, from_first=True),
            )
        )
        self._leaving = None

    def _see_off(self, departures: Iterator[Departure], tally: StepTally) -> None:
        """Wait for departures, give their output and settle their rows."""
        for departure in departures:
            output, seconds = departure.put_out.result()
            tally.seconds["assemble"] += seconds
            if output is not None:
                tally.outputs.append(output)
            if departure.slots is None:
                self._count_hits(departure.matched, departure.rows, departure.output_bytes, tally)
                self._arrivals.let_go()
            else:
                self._output_bytes += departure.output_bytes
                self._served_given_bytes += departure.output_bytes
                count_fates(
                    self.plan, departure.matched, departure.rows - departure.matched, "disk_matches", tally
                )
                self._room.release(departure.slots)
                self._has_put_out = True

    def _count_hits(self, matched: int, rows: int, output_bytes: int, tally: StepTally) -> None:
        self._has_put_out = True
        self._output_bytes += output_bytes
        self._hits_given_bytes += output_bytes
        count_fates(self.plan, matched, rows - matched, "hot_hits", tally)

    def _stream_sizes(self, batch: pa.RecordBatch, rows: Int64s) -> Int64s:
        """Bytes of some rows of a batch; one number when all are equally long."""
        layout = self._room.layout
        if layout.last_open_offset < 0:
            return np.array([layout.least_row_bytes])
        return np.diff(layout.encode(batch.take(rows))[1])


__all__ = ["MOST_PATIENCE", "ProbeJoin", "may_meet"]
