"""The cost model of MOIJ."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tidemill.core.errors import BudgetError
from tidemill.join.moij_sizes import STAGED_SHARE, MoijNeeds, MoijSizes
from tidemill.join.parts import cell_kernels, kept_kernels
from tidemill.join.parts.serve_kernels import PAIR_BYTES
from tidemill.model.chance import at_least
from tidemill.model.cost.hybrid import waiting_work
from tidemill.model.oldest_first import OldestFirst
from tidemill.model.page_rates import PageRates, popularity_of
from tidemill.model.popularity import Floats
from tidemill.model.prediction import SteadyState, memory_split
from tidemill.model.work import Work
from tidemill.model.workload import Workload

_TABLE_SLOTS = 1.6  # of a hot key: the table is made anew with 1.5 at three quarters full
_BORDER_SLACK = 1 / 16  # hot rows grow by an eighth at a time
_REFILL_SHARE = 1 / 32
_ROUNDS = 40
_PRECISION = 1e-3


@dataclass(frozen=True)
class _Balance:
    """Who is hot, and how long the others wait, when neither changes the other any more."""

    hot: Floats
    """Share of the keys of each group of the popularity."""
    phases: OldestFirst
    cells: float
    hot_bytes: float
    changes: float
    """Of hot rows, for one stream row."""


class MoijModel:
    """Work of MOIJ for a stream row: a lookup among hot rows, and of the rest reads of a segment for many rows.

    A key is hot when the rows that would wait for it take more memory than its master rows. So who is hot says how many
    rows can wait, that says how long they wait, and that again who is hot. The model goes round until nothing changes. Near the
    border chance decides: a key turns hot when many rows happened to wait for it, and goes when too few hits came in about two
    queue lengths. A key is hot for the share of time that both chances give it.

    >>> sales = Workload(master_rows=136_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=1.0)
    >>> state = MODEL.steady_state(sales, MODEL.default_sizes(sales, 1_000_000))
    >>> round(state.hit_share, 2), round(1 / state.work_per_row.reads, 1)
    (0.59, 77.7)

    Source: Naeem et al., *Big Data Velocity Management*, IEEE Access 2020, §VI: eq. 2 divided by w_N + w_S is the
    work of one row here. What differs, and why:
    - w_N, w_S and h_R are derived instead of given.
    - Eq. 1 is an identity and eq. 6 equates bytes with rows: neither is used. The split is found from the cache inequality.
    - Eq. 2 omits the lookup among hot rows of the rows that miss (w_S · c_H): here every row is looked up.
    - The eviction (h_R · c_V / 10) and the switching of rows (b · c_I) are counted as the keys that come and go.
    - Rows are taken after as many segments as a step reads, or when one cell in 32 is free, whichever is later. Where output
      is too small for a step, it ends in the middle of a segment, and none are taken until a step ends with one.
    """

    name: ClassVar[str] = "moij"

    def default_sizes(self, workload: Workload, memory_bytes: int) -> MoijSizes:
        return MoijSizes.from_needs(_needs(workload), memory_bytes)

    def size_grid(self, workload: Workload, memory_bytes: int) -> Iterator[MoijSizes]:
        """The default, and segments of half, twice, … its pages in a disk buffer for one read ahead."""
        default = self.default_sizes(workload, memory_bytes)
        found = [default]
        segment_bytes = default.disk_buffer_bytes / (default.read_pages * (1 + default.reads_ahead))
        segments = default.read_pages // default.segment_pages
        for segment_pages in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128):
            buffer_bytes = int(segment_bytes * segments * segment_pages * (1 + default.reads_ahead))
            left = default.pending_bytes + default.disk_buffer_bytes - buffer_bytes
            if segment_pages <= workload.master_pages and left > 0:
                with suppress(BudgetError):
                    pages = segments * segment_pages
                    steps = default.pages_per_step // default.read_pages
                    found.append(
                        replace(
                            default, segment_pages=segment_pages, read_pages=pages, pages_per_step=steps * pages,
                            disk_buffer_bytes=buffer_bytes, pending_bytes=left,
                        )
                    )  # fmt: skip
        yield from dict.fromkeys(found)

    def steady_state(self, workload: Workload, sizes: MoijSizes) -> SteadyState:
        balance = _balance(workload, sizes)
        missed = balance.phases.rates.asked_share
        reads = balance.phases.reads_per_row
        pages = reads * min(sizes.segment_pages, workload.master_pages)
        disk = Work(
            reads=reads,
            read_bytes=pages * workload.page_bytes,
            master_rows=pages * workload.rows_per_page,
            steps=max(1 / balance.phases.rows_per_phase, missed / _most_output_rows(workload, sizes)),
            hot_probes=1,
            hot_changes=balance.changes,
        )
        return SteadyState(
            work_per_row=disk + waiting_work(workload, missed),
            hot_bytes=balance.hot_bytes,
            waiting_bytes=balance.cells * _cell_bytes(workload),
            waiting_rows=balance.phases.rows_left + balance.phases.rows_per_phase * missed / 2,
            hit_share=workload.matched_share - missed,
            memory_bytes=memory_split(sizes),
        )


def _balance(workload: Workload, sizes: MoijSizes) -> _Balance:
    """Goes round: hot keys, room for waiting rows, time that they wait, hot keys."""
    keys = popularity_of(workload)
    asked = keys.shares * workload.matched_share
    cell_bytes = _cell_bytes(workload)
    key_bytes = workload.rows_per_key * _stored_bytes(workload.master_row_bytes) + kept_kernels.ENTRY_BYTES
    held_bytes = key_bytes + (_TABLE_SLOTS - 1) * kept_kernels.ENTRY_BYTES
    least_waiting = key_bytes / cell_bytes
    segments = max(1, -(-workload.master_pages // sizes.segment_pages))
    reads_per_step = max(1.0, min(segments, sizes.pages_per_step / sizes.segment_pages))
    output_rows = _most_output_rows(workload, sizes)
    # As the join does: nobody hot, and a first phase that begins with a full room.
    hot, changes, phase_rows = np.zeros_like(keys.shares), 0.0, float("inf")
    for _ in range(_ROUNDS):
        hot_bytes = min(
            float(np.dot(keys.counts, hot)) * held_bytes * (1 + _BORDER_SLACK),
            sizes.shared_bytes - sizes.least_pending_bytes,
        )
        cells = max(2.0, (sizes.shared_bytes - hot_bytes) / cell_bytes) * (1 - _REFILL_SHARE / 2)
        rates = PageRates.of(workload, 1 - hot, unit_pages=sizes.segment_pages)
        missed = max(1e-9, rates.asked_share)
        least_rows = _REFILL_SHARE * cells / missed
        phase_rows = min(max(phase_rows, least_rows), cells)
        phases, wanted_rows = _phases(rates, cells, phase_rows, reads_per_step, output_rows)
        wanted_rows = min(max(wanted_rows, least_rows), cells)
        # Between two services of a segment, and between two looks at hot rows.
        served_rows = phases.age_rows + phase_rows / 2 + _first_row_after(rates, asked)
        queue_rows = phases.rows_left / missed + phase_rows
        turns_hot = at_least(np.floor(least_waiting) + 1, asked * served_rows) / served_rows
        goes = (1 - at_least(3 * least_waiting, 3 * asked * queue_rows)) / queue_rows
        new = turns_hot / np.maximum(1e-300, turns_hot + goes)
        changes = float(2 * np.dot(keys.counts, hot * goes))
        moved = float(np.dot(keys.counts * asked, np.abs(new - hot)))
        if moved < _PRECISION and abs(wanted_rows / phase_rows - 1) < 10 * _PRECISION:
            break
        hot = (hot + new) / 2
        phase_rows = (phase_rows + wanted_rows) / 2
    return _Balance(hot, phases, cells, hot_bytes, changes)


def _phases(
    rates: PageRates, cells: float, phase_rows: float, reads_per_step: float, output_rows: float
) -> tuple[OldestFirst, float]:
    """Phases of one step each, and how long they should be: a step ends early when half of its output is full."""
    missed = rates.asked_share
    left = max(0.01 * cells, cells - phase_rows * missed)
    phases = OldestFirst(rates=rates, rows_per_phase=phase_rows, rows_left=left)
    rows_of_a_read = missed / max(1e-9, phases.reads_per_row)
    reads = min(reads_per_step, max(1.0, output_rows / 2 / max(1e-9, rows_of_a_read)))
    return phases, phase_rows * reads / max(1e-9, phases.reads_per_phase)


def _most_output_rows(workload: Workload, sizes: MoijSizes) -> float:
    """That a step puts out; one that reads more rows ends in the middle of a segment."""
    pair_bytes = (
        _stored_bytes(workload.stream_row_bytes) + _stored_bytes(workload.master_row_bytes) + PAIR_BYTES
    )
    return STAGED_SHARE * sizes.output_bytes / pair_bytes / max(1.0, workload.rows_per_key)


def _first_row_after(rates: PageRates, asked: Floats) -> Floats:
    """Stream rows until the first one asks for the segment of a key again."""
    others = rates.asked_share / rates.total_pages
    return np.asarray(1 / np.maximum(1e-12, asked + others))


def _needs(workload: Workload) -> MoijNeeds:
    return MoijNeeds(
        stream_row_bytes=workload.expected_stream_row_bytes,
        stream_cell_bytes=_cell_bytes(workload),
        least_stream_row_bytes=_stored_bytes(workload.stream_row_bytes),
        master_row_bytes=workload.master_row_bytes,
        least_master_row_bytes=_stored_bytes(workload.master_row_bytes),
        output_columns=3,
        pages=workload.master_pages,
        index_bytes=workload.index_bytes,
        longest_page_bytes=workload.page_bytes,
    )


def _cell_bytes(workload: Workload) -> int:
    """Of a row that waits; its key is its code."""
    return cell_kernels.HEADER_BYTES + _stored_bytes(workload.stream_row_bytes)


def _stored_bytes(row_bytes: int) -> int:
    """Of a row in one piece: with a byte for what is NULL, in eights."""
    return -(-(row_bytes + 1) // 8) * 8


MODEL = MoijModel()

__all__ = ["MODEL", "MoijModel"]
