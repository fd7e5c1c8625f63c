"""What a join by region does with rows that a read has served: they leave, on this core or on another."""

import numpy as np

from tidemill.core.recycled import Recycled
from tidemill.join.output import OutputPlan
from tidemill.join.parts.aside import Aside
from tidemill.join.parts.departures import Departure, Departures
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.leaving import count_fates
from tidemill.join.parts.leaving_kernels import PAIR_WORK_BYTES
from tidemill.join.parts.putter import Putter
from tidemill.join.parts.service import Part, Service
from tidemill.join.parts.side_by_side import SideBySide
from tidemill.join.parts.tally import StepTally
from tidemill.join.parts.waiting_room import WaitingRoom
from tidemill.join.protocol import SemiStreamJoin
from tidemill.master.rows import RowLayout, UInt8s

_NOBODY = np.empty(0, dtype=np.int64)


class ServedJoin(SemiStreamJoin):
    """The output's side of a join by region.

    Master rows that were read lie in the pages or in a staging area; stream rows lie in the waiting room, whose slots are
    free again when they have left.
    """

    plan: OutputPlan
    _aside: Aside
    _beside: SideBySide
    _copies: bool
    _departures: Departures
    _layout: RowLayout
    _memory: Recycled
    _pairs_per: tuple[int, int, int]
    _putter: Putter
    _room: WaitingRoom
    _staging: UInt8s
    _waiting_row_bytes: int

    def _stage(self, service: Service, staging: UInt8s, filled: Int64s, limit_bytes: int) -> Part:
        """Rows with their matches as they were staged, as far as the output stays within so many bytes."""
        before = int(filled[0])
        sizes = self._room.sizes(service.slots) + self._layout.grows_bytes
        self._waiting_row_bytes = int(sizes[0]) if len(sizes) else 0
        rows, at = service.stage(self._pairs_per, self._layout, staging, limit_bytes, filled, sizes)
        rows_bytes = int(filled[0]) - before - len(at) * (self._waiting_row_bytes + PAIR_WORK_BYTES)
        matched = None if self._copies else (service.matches + service.given)[rows] > 0
        return Part(service.slots[rows], at, matched, rows_bytes)

    def _may_depart(self, service: Service, part: Part) -> bool:
        """Whether rows served are better put together on another core."""
        is_worth = bool(service.page) and self._beside.is_able and self._aside.is_worth(len(part.slots))
        return is_worth and service.is_one_each

    def _depart_served(self, service: Service, part: Part, finished: slice) -> int:
        """Bytes of rows that another core puts together; their slots and what was read for them stay until then."""
        output_bytes = part.rows_bytes + len(part.slots) * (self._waiting_row_bytes + PAIR_WORK_BYTES)
        places, slots = self._room.places(part.slots), service.slots[finished]
        matched = int(np.count_nonzero(service.matches[finished]))
        put_out = self._beside.ask_rows(
            self._putter,
            self._room.rows,
            places,
            service.page.buffer,
            part.at,
            part.rows_bytes,
            self._memory,
            matched,
        )
        self._departures.add(
            Departure(
                put_out,
                rows=len(slots),
                matched=matched,
                output_bytes=output_bytes,
                slots=slots,
                service=service,
            )
        )
        return output_bytes

    def _put_out_served(self, leaving: list[Part], rows: UInt8s, tally: StepTally) -> None:
        """Put together stream rows and the master rows that lie in `rows`."""
        slots = np.concatenate([part.slots for part in leaving]) if leaving else _NOBODY
        if not len(slots):
            return
        # Rows of free slots stay until others come.
        at = np.concatenate([part.at for part in leaving])
        if self._beside.is_able:
            places, rows_bytes = self._room.places(slots), sum(part.rows_bytes for part in leaving)
            tally.outputs.append(
                self._beside.of_rows(self._room.rows, places, rows, at, rows_bytes, self._memory)
            )
            return
        stream_rows = self._room.decode(slots, self._memory)
        if self._copies:
            master_rows = self._layout.decode(rows, at, self.plan.chosen_columns, self._memory)
            tally.outputs.append(self.plan.assemble(stream_rows, master_rows, at >= 0))
        else:
            matched = np.concatenate([part.matched for part in leaving if part.matched is not None])
            tally.outputs.append(self.plan.assemble(stream_rows, None, matched))

    def _settle_served(self, service: Service, rows: slice, tally: StepTally) -> None:
        matched = int(np.count_nonzero(service.matches[rows] + service.given[rows]))
        count_fates(self.plan, matched, rows.stop - rows.start - matched, "disk_matches", tally)
        self._room.release(service.slots[rows])


__all__ = ["ServedJoin"]
