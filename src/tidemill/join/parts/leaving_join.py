"""What `tide` does with rows that met hot ones: they leave, put together here or by another core."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from tidemill.join.parts.arrivals import Arrivals
from tidemill.join.parts.aside import Aside, Timed
from tidemill.join.parts.departures import Departure
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.leaving import Leaving, count_fates
from tidemill.join.parts.leaving_kernels import PAIR_WORK_BYTES
from tidemill.join.parts.leaving_once import LeavingOnce
from tidemill.join.parts.probed import Probed
from tidemill.join.parts.putter import Asked, Putter
from tidemill.join.parts.row_taker import RowTaker
from tidemill.join.parts.set_cache import SetCache
from tidemill.join.parts.split_join import SplitJoin
from tidemill.join.parts.tally import StepTally


class LeavingJoin(SplitJoin):
    """The output's side of rows that arrive and need not wait."""

    _arrivals: Arrivals
    _aside: Aside
    _taker: RowTaker
    _leaving: Leaving | LeavingOnce | None
    _given_of_first: int
    _hits_given_bytes: int
    _has_put_out: bool

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
            Departure(
                put_out,
                len(all_known),
                probed.matched,
                output_bytes,
                stream_rows=stream_rows,
                look=self._look,
            )
        )

    @property
    def _look(self) -> int:
        """Number of the last look at hot rows, where rows may be replaced."""
        return self._hot.looks if isinstance(self._hot, SetCache) else 0

    @property
    def _looks_under_way(self) -> int:
        """How many of the last looks found rows that are still to be put together."""
        looks = [departure.look for departure in self._departures.of_hits()]
        if self._leaving is not None:
            looks.append(self._look)  # nobody looks on while these have not left or been handed over
        return self._look - min(looks) + 1 if looks else 0

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
                look=self._look,
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


__all__ = ["LeavingJoin"]
