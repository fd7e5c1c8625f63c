"""How much of the memory should be hot rows, and how much waiting rows."""

from dataclasses import dataclass

SHARES = (0.02, 0.15, 0.35, 0.5, 0.65, 0.8)
"""Of hot rows; a change costs both what they hold, so there are few."""
_MISS_SECONDS = 0.4e-6  # of work that a hit saves: wait, find, stage
_READ_SECONDS = 60e-6  # of a read, whatever its size, with another one in flight
_BYTES_PER_S = 3.5e9
_CLEAR = 2.0  # times as much must a byte be worth on the other side
_ROWS_PER_LOOK = 4  # for each row that could be hot or wait


@dataclass
class Period:
    """What was counted since the last look."""

    rows: int = 0
    misses: int = 0
    services: int = 0
    """Regions that were read."""
    served_rows: int = 0
    bytes_read: int = 0


class Split:
    """Moves memory between hot and waiting rows to where a byte saves more seconds.

    A byte more for hot rows saves what the least used of them save: as many misses as they have hits, each with its
    share of a read. A byte more for waiting rows lets each read serve more of them: reading costs as much less as the
    room is larger. Both are counted, none is assumed; what a read and a miss cost are constants.
    """

    def __init__(self, share: float = 0.5) -> None:
        self.share = share
        self.period = Period()
        self._patience = 1
        self._looks = 0

    def is_due(self, hot_entries: int, waiting_rows: int) -> bool:
        return self.period.rows > _ROWS_PER_LOOK * self._patience * (hot_entries + waiting_rows)

    def look(self, *, hits_per_byte: float, waiting_bytes: int, is_hot_full: bool) -> float | None:
        """The share that hot rows should have instead, or None; a new period begins.

        Args:
            hits_per_byte: Of the less used half of hot rows, for each stream row.
            waiting_bytes: Of the room as it is.
            is_hot_full: Whether more would be hot if there were room.
        """
        period, self.period = self.period, Period()
        if not period.services or not period.served_rows:
            return None
        seconds = period.services * _READ_SECONDS + period.bytes_read / _BYTES_PER_S
        read_seconds = seconds / period.served_rows
        hot_value = hits_per_byte * (_MISS_SECONDS + read_seconds)
        waiting_value = period.misses / period.rows * read_seconds / max(1, waiting_bytes)
        at = SHARES.index(self.share)
        if hot_value > _CLEAR * waiting_value and at + 1 < len(SHARES) and is_hot_full:
            better = SHARES[at + 1]
        elif waiting_value > _CLEAR * hot_value and at > 0:
            better = SHARES[0 if waiting_value > 4 * _CLEAR * hot_value else at - 1]
        else:
            self._patience = min(64, self._patience * 2)
            return None
        self._looks += 1
        if self._looks > len(SHARES):
            self._patience = min(64, self._patience * 2)
        self.share = better
        return better


__all__ = ["SHARES", "Split"]
