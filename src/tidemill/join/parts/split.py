"""How much of the memory should be hot rows, and how much waiting rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np

SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.27, 0.35, 0.42, 0.5, 0.6, 0.7, 0.8)
"""Of hot rows, that are compared."""
START_SHARE = 0.2  # near what arithmetic says for Zipf 1; one change from it for others
_LEAST_GAIN = 0.02  # of seconds, for which memory is moved
_LEAST_ROWS = 2_000  # of a period: hits of fewer are chance
_PROBES_TO_SETTLE = 16  # for each hot row: sooner most are there by chance, and seem worth less than they are
_MOST_PATIENCE = 64
_REST = 4  # times as long as it had to wait: a change after that is the stream's doing, not ours
OFTEN = 4
"""Meetings after which it is no chance: a uniform stream shows the sketch a few such codes in a thousand."""
MET_FOR_MORE_ROOM = 3
"""Meetings that are enough where hot rows have just got more memory: of a uniform stream's codes one in 3,000 has them by
chance. With the four that a small cache asks for, half of the new room was empty after a room's rows."""
_MOST_EXPONENT = 3.0
_HALVINGS = 20


@dataclass(frozen=True, kw_only=True)
class MissCosts:
    """What a row that is no hit is taken to cost; measured with flash, one read in flight beside another."""

    miss_seconds: float = 0.4e-6
    """Of work that a hit saves: wait, find, stage."""
    read_seconds: float = 60e-6
    """Of a read, whatever its size."""
    bytes_per_s: float = 3.5e9


@dataclass
class Period:
    """What was counted since the last look."""

    rows: int = 0
    misses: int = 0
    met_again: int = 0
    """Misses of codes that had been met `OFTEN` times of late."""
    services: int = 0
    """Regions that were read."""
    served_rows: int = 0
    bytes_read: int = 0


class Split:
    """Moves memory between hot and waiting rows to where a byte saves more seconds.

    A hit saves a miss with its share of a read; a byte more for waiting rows makes reads cheaper in proportion. What
    hot rows would save if they were more or fewer follows from Zipf's law: the exponent is the one with which as many
    top keys as are hot, or are known to come often, would get as many rows as were counted. Hot rows that have not
    settled get fewer, so what is counted speaks too low of them: they grow at the first sign, and shrink when they have
    settled. Each time it turns around soon it waits twice as long, since it went too far; after a rest it is the stream that
    changed. That misses of often met codes count is what makes the first sign come soon: a code turns hot when its region
    is read, and all regions are read once while twice the room's rows pass.

    Args:
        share: Of hot rows at the start.
        keys: Of the master data.
        hot_row_bytes: Of a hot row with its entry.
        costs: Of a miss and a read.
    """

    def __init__(
        self,
        share: float = START_SHARE,
        *,
        keys: int,
        hot_row_bytes: float,
        costs: MissCosts | None = None,
    ) -> None:
        self.share = share
        self.period = Period()
        self._keys = max(1, keys)
        self._hot_row_bytes = hot_row_bytes
        self._costs = costs or MissCosts()
        self._rows_since_change = 0
        self._grew: bool | None = None
        self._patience = 1

    def is_due(self, waiting_rows: int) -> bool:
        """Whether a quarter of the room, which can hold so many rows, has passed."""
        return self.period.services > 0 and self.period.rows > max(_LEAST_ROWS, waiting_rows // 4)

    def look(
        self, *, both_bytes: int, hot_rows: int, most_waiting: int, counted_rows: float, is_hot_full: bool
    ) -> float | None:
        """The share that hot rows should have instead, or None; a new period begins.

        Whoever moves the memory sets `share`.

        Args:
            both_bytes: What hot and waiting rows share.
            hot_rows: That there are.
            most_waiting: Rows that the room can hold.
            counted_rows: Misses among which codes were counted.
            is_hot_full: Whether more would be hot if there were room.
        """
        period, self.period = self.period, Period()
        self._rows_since_change += period.rows
        if not period.served_rows or not period.rows:
            return None
        better = self._best_share(period, hot_rows, counted_rows)
        grows = better > self.share
        settled_rows = max(_PROBES_TO_SETTLE * both_bytes * self.share / self._hot_row_bytes, most_waiting)
        if self._rows_since_change > _REST * self._patience * settled_rows:
            self._patience, self._grew = 1, None
        least_rows = (self._patience - grows) * settled_rows
        if better == self.share or (grows and not is_hot_full) or self._rows_since_change < least_rows:
            return None
        if (
            self._grew is not None and grows != self._grew
        ):  # it went too far: each time it waits twice as long
            self._patience = min(_MOST_PATIENCE, 2 * self._patience)
        self._grew, self._rows_since_change = grows, 0
        return better

    def _best_share(self, period: Period, hot_rows: int, counted_rows: float) -> float:
        """The share with the fewest seconds a row; the present one unless another is better by far."""
        costs = self._costs
        seconds = period.services * costs.read_seconds + period.bytes_read / costs.bytes_per_s
        hits = 1 - period.misses / period.rows
        counted = counted_rows / max(1e-6, 1 - hits)  # stream rows with as many misses
        if counted < self._keys:  # else a uniform stream would meet many codes again too
            again = period.met_again / period.rows
            exponent = _exponent(hot_rows, self._keys, hits + again, OFTEN / max(OFTEN, counted))
        else:
            exponent = _exponent(hot_rows, self._keys, hits)
        shares = np.array([self.share, *SHARES])
        misses = 1 - _share_of_top(hot_rows * shares / max(1e-9, self.share), self._keys, exponent)
        read_seconds = seconds / period.served_rows * (1 - self.share) / (1 - shares)
        each = misses * (costs.miss_seconds + read_seconds)
        best = int(np.argmin(each))
        return float(shares[best if each[best] < (1 - _LEAST_GAIN) * each[0] else 0])


def _share_of_top(top: Any, keys: int, exponent: float) -> Any:
    """Rows that ask for one of the `top` most popular keys, by Zipf's law with integrals for its sums.

    >>> _share_of_top(np.array([3_400, 20_000]), 1_000_000, 1.0).round(2).tolist()
    [0.61, 0.73]
    """
    first, power = 0.5, 1 - exponent + 1e-9
    # Numpy's minimum of two plain numbers takes as long as all the rest, and `_exponent` asks forty times.
    most = np.minimum(top, keys) if isinstance(top, np.ndarray) else min(top, keys)
    return ((most + first) ** power - first**power) / ((keys + first) ** power - first**power)


def _exponent(top: int, keys: int, known_share: float, often_share: float = 1.0) -> float:
    """Of Zipf's law, with which so many top keys get that share of the stream; 0 where they get no more than others.

    >>> round(_exponent(3_400, 1_000_000, 0.605), 2)
    1.0

    Args:
        top: Keys that are hot.
        keys: In all.
        known_share: Rows of keys that are hot or come often.
        often_share: What a key that comes often has of the stream at least.
    """
    low, high = 0.0, _MOST_EXPONENT
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        first_share = float(_share_of_top(1, keys, middle))
        often = (first_share / often_share) ** (1 / max(middle, 0.05))
        known = float(_share_of_top(min(keys, max(top, often)), keys, middle))
        low, high = (middle, high) if known < known_share else (low, middle)
    return low


__all__ = ["MET_FOR_MORE_ROOM", "OFTEN", "SHARES", "START_SHARE", "MissCosts", "Period", "Split"]
