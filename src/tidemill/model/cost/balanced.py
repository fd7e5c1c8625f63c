"""The cost model of SSBJ, the balanced join: MESHJOIN for the rows that hot rows do not answer."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import ceil
from typing import ClassVar

import numpy as np

from tidemill.core.errors import BudgetError
from tidemill.join.balanced_sizes import BalancedSizes
from tidemill.join.mesh_sizes import waiting_row_bytes
from tidemill.join.parts.hot_rows import ENTRY_BYTES
from tidemill.model.cost.mesh import Cycle, arrivals_rows, scan_work, sizes_from, steps_of, window_bytes
from tidemill.model.popularity import Floats, Popularity
from tidemill.model.prediction import SteadyState, memory_split
from tidemill.model.work import Work
from tidemill.model.workload import Workload

_LEAST_MISS_SHARE = 0.05  # as in the join: it probes no more than twenty packets' worth at a time
_LOOKS_PER_CYCLE = 2.0  # hot keys are judged again when half a window of rows has missed
_MOST_ROUNDS = 60
_HOT_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7)


@dataclass(frozen=True, kw_only=True)
class HotKeys:
    """Keys that are hot in the long run."""

    keys: float
    hit_share: float
    changes_per_cycle: float


class BalancedModel:
    """Work of the balanced join for a stream row: hits cost a lookup, misses share a cycle as in MESHJOIN.

    A key is hot when the rows that would wait for it in one cycle take more memory than its master rows: so many that
    `least_waiting`. More hits let a step take more rows, more rows in a cycle make more keys worth their place: from
    a cold start the model goes round until nothing changes, as the join itself does. Where hot rows have no memory for
    all such keys, those with most rows stay.

    Source: the cache inequality (Theorems 1 and 2) of *Big Data Velocity Management*, IEEE Access 2020, with eq. 2 of
    MESHJOIN. The texts give no equations for SSBJ. What we derive, and why:
    - Rows that wait for a key are drawn at random, so a key near the border is hot only at times. It turns hot when
      it is met by chance often enough in one cycle, and is let go at the first of two looks a cycle that finds it below.
    - A step probes as many rows as give one packet of misses, but never more than would fit were all of them misses.
    """

    name: ClassVar[str] = "balanced"

    def default_sizes(self, workload: Workload, memory_bytes: int) -> BalancedSizes:
        return BalancedSizes.with_hot_rows(memory_bytes, **sizes_from(workload))

    def size_grid(self, workload: Workload, memory_bytes: int) -> Iterator[BalancedSizes]:
        """The default, and other shares of hot rows with steps of other lengths."""
        found = [self.default_sizes(workload, memory_bytes)]
        for share, pages in product(_HOT_SHARES, steps_of(workload.master_pages, growth=1.4)):
            if pages * 4 * workload.page_bytes < memory_bytes:
                with suppress(BudgetError):  # buffers that leave too little for the window
                    found.append(
                        BalancedSizes.with_hot_rows(
                            memory_bytes, **sizes_from(workload), hot_share=share, master_pages_per_step=pages
                        )
                    )
        yield from dict.fromkeys(found)

    def steady_state(self, workload: Workload, sizes: BalancedSizes) -> SteadyState:
        cycle, hot = self.equilibrium(workload, sizes)
        missed = 1 - hot.hit_share
        return SteadyState(
            work_per_row=scan_work(workload, cycle)
            + Work(
                stream_rows=1,
                hot_probes=1,
                added=missed,
                removed=missed,
                output_rows=workload.output_rows_per_row,
                hot_changes=hot.changes_per_cycle / cycle.rows,
            ),
            hot_bytes=hot.keys * hot_key_bytes(workload),
            waiting_bytes=window_bytes(workload, sizes, cycle.rows * missed),
            waiting_rows=cycle.rows * missed,
            hit_share=hot.hit_share,
            memory_bytes=memory_split(sizes),
        )

    def equilibrium(self, workload: Workload, sizes: BalancedSizes) -> tuple[Cycle, HotKeys]:
        """Rows of a cycle and the keys that are hot then."""
        steps = -(-workload.master_pages // sizes.master_pages_per_step)
        packets = min(steps, sizes.queue_packets)
        rows = 0.0
        hot = HotKeys(keys=0, hit_share=0, changes_per_cycle=0)
        for _ in range(_MOST_ROUNDS):
            before, rows = rows, packets * rows_per_step(workload, sizes, packets, 1 - hot.hit_share)
            if rows <= before * 1.001:
                break
            hot = hot_keys(workload, rows, sizes.most_generation_bytes / hot_key_bytes(workload))
        return Cycle(rows=rows, reads=steps), hot


def rows_per_step(workload: Workload, sizes: BalancedSizes, packets: int, missed: float) -> float:
    """Stream rows that a step probes."""
    wanted = sizes.stream_rows_per_step / max(_LEAST_MISS_SHARE, missed)
    # Before a step the misses of all other packets wait; all rows taken must fit beside them.
    fitting = sizes.window_rows / (1 + (packets - 1) * missed)
    return min(wanted, fitting, arrivals_rows(workload, sizes))


def hot_key_bytes(workload: Workload) -> float:
    return workload.rows_per_key * workload.master_row_bytes + ENTRY_BYTES


def least_waiting(workload: Workload) -> float:
    """Waiting rows of a key that take as much memory as it would take among the hot rows."""
    return hot_key_bytes(workload) / waiting_row_bytes(workload.expected_stream_row_bytes)


def hot_keys(workload: Workload, rows_per_cycle: float, most_keys: float) -> HotKeys:
    """Those that the inequality makes hot, the most frequent ones when not all have place."""
    popularity = popularity_of(workload)
    shares = popularity.shares * workload.matched_share
    waiting = shares * rows_per_cycle
    border = ceil(least_waiting(workload))
    hot = hot_share(waiting, border)
    if np.dot(hot, popularity.counts) > most_keys:
        border, hot = _highest_worth(waiting, popularity.counts, border, most_keys)
    keys = hot * popularity.counts
    come = (1 - hot) * popularity.counts * chance_of_more(waiting, border)
    return HotKeys(
        keys=float(keys.sum()), hit_share=float(np.dot(keys, shares)), changes_per_cycle=2 * float(come.sum())
    )


def _highest_worth(waiting: Floats, counts: Floats, border: int, most_keys: float) -> tuple[int, Floats]:
    """The border at which keys have place, and how long each is hot: of those right at the border as many as fit."""
    too_many, few_enough = border, ceil(waiting.max()) + border
    while few_enough - too_many > 1:
        middle = (too_many + few_enough) // 2
        if np.dot(hot_share(waiting, middle), counts) > most_keys:
            too_many = middle
        else:
            few_enough = middle
    more, fewer = hot_share(waiting, too_many), hot_share(waiting, few_enough)
    fitting = (most_keys - np.dot(fewer, counts)) / np.dot(more - fewer, counts)
    return few_enough, fewer + (more - fewer) * np.clip(fitting, 0, 1)


def hot_share(waiting: Floats, least: int) -> Floats:
    """Part of the time for which a key is hot, by the rows that wait for it in a cycle on average."""
    comes = chance_of_more(waiting, least)
    goes = _LOOKS_PER_CYCLE * (1 - comes)
    share: Floats = comes / (comes + goes)
    return share


def chance_of_more(mean: Floats, least: int) -> Floats:
    """That a number of random events with this mean is `least` or more.

    It is the chance that a gamma variable is below the mean (Wilson and Hilferty: its cube root is about normal), the
    normal distribution itself by a logistic curve (Page): wrong by 0.01 at most from three events on.
    """
    deviation = 3 * np.sqrt(least) * (np.cbrt(mean / least) - 1 + 1 / (9 * least))
    chance: Floats = 1 / (1 + np.exp(-np.clip(1.5976 * deviation + 0.070566 * deviation**3, -500, 500)))
    return chance


@cache
def popularity_of(workload: Workload) -> Popularity:
    return Popularity(workload.master_keys, exponent=workload.zipf_exponent)


MODEL = BalancedModel()

__all__ = ["MODEL", "BalancedModel", "HotKeys", "hot_keys", "hot_share", "least_waiting", "rows_per_step"]
