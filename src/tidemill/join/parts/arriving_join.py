"""What `moij` does with arrivals: they meet hot rows, and leave or wait."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.core.recycled import Recycled
from tidemill.join.output import OutputPlan
from tidemill.join.parts import cell_sifting_kernels as sifting
from tidemill.join.parts.arrivals import Arrivals
from tidemill.join.parts.aside import Aside
from tidemill.join.parts.departures import Departure, Departures
from tidemill.join.parts.front import Front
from tidemill.join.parts.hits import PAIR_BYTES, Hits
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.leaving import count_fates
from tidemill.join.parts.page_search import find_pages
from tidemill.join.parts.putter import Putter
from tidemill.join.parts.row_taker import RowTaker
from tidemill.join.parts.shared_rows import SharedRows, StreamCells
from tidemill.join.parts.side_by_side import SideBySide
from tidemill.join.parts.tally import StepTally
from tidemill.join.protocol import SemiStreamJoin
from tidemill.master import MasterData
from tidemill.master.index import PageIndex
from tidemill.master.rows import RowLayout

_REFILL_SHARE = (
    32  # of the cells must be free before rows are taken: a piece of few rows costs as much as one of many
)
_PIECES_OF_ARRIVALS = 3  # one leaves while another is probed, and there is room for half of the arrivals


@dataclass(slots=True)
class Known:
    """A piece of the stream that has met hot rows: how far it was looked at, and the rows whose fate is known."""

    until: int
    misses: int
    positions: Int64s
    at: Int64s
    matches: Int64s
    most_matches: int | None = None
    """Of a row. Where it is known, so are the next two: rows with a match, and bytes of one match each."""
    matched: int = 0
    matches_bytes: int = 0


class ArrivingJoin(SemiStreamJoin):
    """The stream's side of `moij`.

    Rows are probed in pieces. Hits of a piece are put together on another core, where there is one and they are worth it,
    while the next piece is probed or segments are matched; hot rows do not move before these have left.
    """

    plan: OutputPlan
    _arrivals: Arrivals
    _aside: Aside
    _beside: SideBySide
    _departures: Departures
    _front: Front | None
    _given_bytes: int
    _has_put_out: bool
    _hits: Hits | None
    _hits_given_bytes: int
    _layout: RowLayout
    _master: MasterData
    _memory: Recycled
    _miss_share: float
    _probed_since: int
    _putter: Putter
    _rows: SharedRows
    _stream: StreamCells
    _taker: RowTaker

    @property
    def _takes_rows(self) -> bool:
        """Whether arrivals are probed now: rows that miss can wait, and those that wait have not waited too long."""
        if not self._arrivals.rows or (self._rows.waiting_rows and self._probed_since > self._rows.cells):
            return False
        return self._rows.free_cells > self._rows.cells // _REFILL_SHARE or not self._rows.waiting_rows

    def _probe_stream(self, tally: StepTally) -> None:
        """Let arrivals meet hot rows; those that miss wait, as far as there is room."""
        while self._hits is None and self._takes_rows and self._probe_piece(tally):
            if self._hits is not None:
                self._let_leave(self._hits, tally)
            self._see_off(self._departures.done(), tally)

    def _probe_piece(self, tally: StepTally) -> bool:
        """Whether rows were looked at; their hits are on their way, or about to leave."""
        with tally.timed("probe"):
            front, begin = self._look_at_front(), self._arrivals.begun
            end = begin + min(self._piece_rows(), max(1, int(self._rows.free_cells / self._miss_share)))
            codes, sources = front.codes[begin:end], front.sources(begin)
            at, matches = self._rows.probe(codes, front.present[begin:end])
        with tally.timed("wait"):
            index = getattr(self._master, "index", None)
            if sources is not None and self._master.page_order == "key" and isinstance(index, PageIndex):
                known = self._sift(index, codes, sources, at, matches)
            else:
                known = self._part(self._arrivals.peek(len(codes)), codes, at, matches)
        if known.until == 0:
            self._probed_since = self._rows.cells + 1  # nothing more until some have left
            return False
        self._miss_share = min(1.0, max(0.02, 0.9 * self._miss_share + 0.11 * known.misses / known.until))
        self._probed_since += known.until
        tally.counts["waited_rows"] += known.misses
        self._arrivals.pass_by(known.until, beside_others=bool(self._departures))
        if not self._arrivals.begun:
            self._front = None
        if not self._depart_at_once(front.batch, begin, sources, known):
            self._begin_leaving(front.batch.slice(begin, known.until), known)
        return True

    def _piece_rows(self) -> int:
        """Rows of the oldest batch, in pieces of equal length where one is probed while another leaves."""
        rows, piece = self._arrivals.next_rows, self._arrivals.most_rows // _PIECES_OF_ARRIVALS
        if not self._beside.is_able or not self._aside.is_worth(piece):
            return rows
        return -(-rows // -(-rows // piece))

    def _look_at_front(self) -> Front:
        batch = self._arrivals.front
        if self._front is None or self._front.batch is not batch:
            codes, present = stream_keys(batch, self.plan.stream_key)
            self._front = Front(batch, codes, present, self._beside.sources(batch))
        return self._front

    # Misses wait.

    def _sift(self, index: PageIndex, codes: Int64s, sources: Int64s, at: Int64s, matches: Int64s) -> Known:
        """Let misses wait by one compiled call: rows of fixed length, without NULLs, in a store in order of key."""
        known = np.empty_like(at)
        result = self._rows.sift(index, codes, sources, at, matches, known).tolist()
        count = result[sifting.KNOWN]
        return Known(
            result[sifting.UNTIL],
            result[sifting.MISSES],
            known[:count],
            at[:count],
            matches[:count],
            result[sifting.MOST_MATCHES],
            result[sifting.MATCHED],
            result[sifting.MATCHES_BYTES],
        )

    def _part(self, batch: pa.RecordBatch, codes: Int64s, at: Int64s, matches: Int64s) -> Known:
        """As `_sift`, for rows of any kind."""
        misses = np.flatnonzero(matches < 0)
        first_page, pages = find_pages(self._master, codes[misses])
        is_absent = pages == 0
        if is_absent.any():  # the index knows that these do not exist
            matches[misses[is_absent]] = 0
            misses, first_page, pages = misses[~is_absent], first_page[~is_absent], pages[~is_absent]
        rows = self._stream.layout.encode(self._taker.take(batch, misses))
        pushed = self._rows.push(codes[misses], first_page, pages, *rows)
        until = int(misses[pushed]) if pushed < len(misses) else batch.num_rows
        positions = np.flatnonzero(matches[:until] >= 0)
        return Known(until, pushed, positions, at[positions], matches[positions])

    # The others leave.

    @property
    @abstractmethod
    def _columns_bytes(self) -> int:
        """Of the output reservation, for what leaves in a step or is on its way."""

    @property
    @abstractmethod
    def _hits_bytes(self) -> int:
        """The same, for hits alone: what segments give in the same step has room beside them."""

    @property
    def _hits_bytes_left(self) -> int:
        return self._hits_bytes - self._hits_given_bytes - self._departures.hits_bytes

    def _depart_at_once(
        self, batch: pa.RecordBatch, begin: int, sources: Int64s | None, known: Known
    ) -> bool:
        """Whether another core puts hits together without a look at each: one pair at most, and memory for all."""
        positions, at, rows = known.positions, known.at, len(known.positions)
        if sources is None or self.plan.stream_key.form.is_hashed or known.most_matches not in (0, 1):
            return False
        unmatched = rows - known.matched
        if not self._aside.is_worth(rows) or not (known.matched or self.plan.how == "left"):
            return False
        each = self._stream.layout.least_row_bytes + self._layout.grows_bytes + PAIR_BYTES
        output_bytes = known.matches_bytes + unmatched * self._layout.fixed_bytes + rows * each
        if output_bytes > self._hits_bytes_left:
            return False
        if self.plan.how == "inner" and unmatched:
            has_match = at >= 0
            positions, at = positions[has_match], at[has_match]
        put_out = self._beside.ask_batch(
            self._putter, batch, sources, positions, self._rows.memory, at, known.matches_bytes, self._memory,
            known.matched,
        )  # fmt: skip

        def stream_rows() -> pa.RecordBatch:
            return batch.slice(begin, known.until).take(known.positions)

        self._departures.add(Departure(put_out, rows, known.matched, output_bytes, stream_rows=stream_rows))
        return True

    def _begin_leaving(self, batch: pa.RecordBatch, known: Known) -> None:
        matches = known.matches
        if self.plan.stream_key.form.is_hashed:
            hit = np.flatnonzero(matches)
            met = self._are_met(batch.take(known.positions[hit]), known.at[hit])
            matches[hit[~met]] = 0
        row_bytes = -(-batch.nbytes // batch.num_rows)
        leaving = (batch, known.positions, known.at, matches, row_bytes)
        self._hits = Hits(self.plan, self._layout, *leaving, self._beside, self._memory)

    def _are_met(self, stream_rows: pa.RecordBatch, at: Int64s) -> Bools:
        """Where equal codes are equal keys."""
        key = self.plan.stream_key
        return key.is_met(stream_rows, self._layout.decode(self._rows.memory, at, key.form.columns))

    def _let_leave(self, hits: Hits, tally: StepTally) -> None:
        """Have another core put hits together, or put some out now, if nothing else has left in this step."""
        if self._aside.is_worth(hits.rows_left):
            departure = hits.ask_for_all(self._putter, self._rows.memory, self._hits_bytes_left)
            if departure is not None:
                self._departures.add(departure)
                self._hits = None
                return
        self._see_off(self._departures.all(), tally)
        if self._given_bytes:
            return
        with tally.timed("assemble"):
            output, matched, unmatched = hits.next_output(self._rows.memory, self._columns_bytes)
        self._settle(output, matched, unmatched, "hot_hits", tally)
        if not hits.rows_left:
            self._hits = None
            self._arrivals.let_go()

    def _settle(
        self, output: pa.RecordBatch | None, matched: int, unmatched: int, found_in: str, tally: StepTally
    ) -> None:
        count_fates(self.plan, matched, unmatched, found_in, tally)
        self._has_put_out |= matched + unmatched > 0
        if output is not None:
            tally.outputs.append(output)
            self._given_bytes += output.nbytes

    def _see_off(self, departures: Iterator[Departure], tally: StepTally) -> None:
        """Wait for departures, give their output and settle their rows."""
        for departure in departures:
            output, seconds = departure.put_out.result()
            tally.seconds["assemble"] += seconds
            if output is not None:
                tally.outputs.append(output)
            self._given_bytes += departure.output_bytes
            self._has_put_out = True
            is_hit = departure.slots is None
            found_in = "hot_hits" if is_hit else "disk_matches"
            count_fates(self.plan, departure.matched, departure.rows - departure.matched, found_in, tally)
            if is_hit:
                self._hits_given_bytes += departure.output_bytes
                self._arrivals.let_go()


__all__ = ["ArrivingJoin"]
