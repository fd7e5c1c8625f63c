"""How much of the memory should be hot rows, and how much waiting rows."""

from dataclasses import dataclass

SHARES = (0.02, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8)
"""Of hot rows; a change costs both what they hold, so there are few."""
START_SHARE = 0.2  # near what arithmetic says for Zipf 1; one or two changes from it for others
_MISS_SECONDS = 0.4e-6  # of work that a hit saves: wait, find, stage
_READ_SECONDS = 60e-6  # of a read, whatever its size, with another one in flight
_BYTES_PER_S = 3.5e9
# What a byte of hot rows saves on average, by what one of waiting rows saves. The last of 50,000 hot rows is worth half
# of their average with Zipf 0.5, a twelfth with Zipf 1, a fortieth with Zipf 1.25, as calculated; the average itself can
# be trusted soon.
_TOO_LITTLE, _PLENTY = 2.0, 60.0
_ROWS_PER_LOOK = 16  # for each hot row: sooner most are there by chance


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

    A hit saves a miss with its share of a read. A byte more for waiting rows lets each read serve more of them: reading
    costs as much less as the room is larger. Both are counted; what a read and a miss cost are constants. Hot rows that
    save little even on average give way at once; they grow step by step.
    """

    def __init__(self, share: float = START_SHARE) -> None:
        self.share = share
        self.period = Period()
        self._patience = 1
        self._looks = 0

    def is_due(self, hot_rows: int, waiting_rows: int) -> bool:
        """Whether hot rows have shown what they are worth, and the room has been full and served once."""
        return self.period.rows > self._patience * max(_ROWS_PER_LOOK * hot_rows, waiting_rows)

    def look(self, *, hot_bytes: int, waiting_bytes: int, is_hot_full: bool) -> float | None:
        """The share that hot rows should have instead, or None; a new period begins.

        Args:
            hot_bytes: What hot rows take.
            waiting_bytes: Of the room as it is.
            is_hot_full: Whether more would be hot if there were room.
        """
        period, self.period = self.period, Period()
        if not period.services or not period.served_rows:
            return None
        seconds = period.services * _READ_SECONDS + period.bytes_read / _BYTES_PER_S
        read_seconds = seconds / period.served_rows
        hot_value = (period.rows - period.misses) * (_MISS_SECONDS + read_seconds) / max(1, hot_bytes)
        waiting_value = period.misses * read_seconds / max(1, waiting_bytes)
        at = SHARES.index(self.share)
        if hot_value > _PLENTY * waiting_value and at + 1 < len(SHARES) and is_hot_full:
            better = SHARES[at + 1]
        elif hot_value < _TOO_LITTLE * waiting_value and at > 0:
            better = SHARES[0]
        else:
            self._patience = min(64, self._patience * 2)
            return None
        self._looks += 1
        if self._looks > len(SHARES):
            self._patience = min(64, self._patience * 2)
        self.share = better
        return better


__all__ = ["SHARES", "START_SHARE", "Split"]
