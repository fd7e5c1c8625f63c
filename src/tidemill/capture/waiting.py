"""Rows between the application and the sender, and whether they still are complete."""

from collections import deque
from collections.abc import Sequence

from tidemill.capture.rows import Row


class WaitingRows:
    """Submitted rows that are in no block yet. Not locked: its owner does that.

    When rows cannot be kept (no block number known yet, spool full, too many in memory, or a hook that is
    not certain what was committed), the copy in memory is dropped and the source is read again by position.
    Until then `behind` holds and submitted rows are not kept, as the source has them.
    `catching_up` holds somewhat longer: rows that are submitted during the last read are kept, and those
    that this read found too are dropped by `take`, by their position.
    """

    def __init__(self, *, max_rows: int, block_rows: int, most_rows: int) -> None:
        self._max_rows, self._block_rows, self.most_rows = max_rows, block_rows, most_rows
        self._submissions: deque[tuple[Sequence[Row], bool]] = deque()
        self.rows = 0
        self.first_at_ns = 0
        self.behind = True
        self.catching_up = True

    def add(self, rows: Sequence[Row], *, late: bool, now_ns: int) -> bool:
        """Whether the sender should look: these are the first rows, or they make a block full.

        Waking it for each commit would cost the application more than all else here. `late` rows lie below a
        position already handed over, so that no read would find them: they are kept in any case.
        """
        if self.behind and not late:
            return False
        rows_before = self.rows
        if not self._submissions:
            self.first_at_ns = now_ns
        self._submissions.append((rows, late))
        self.rows += len(rows)
        if self.rows > self._max_rows and not late:
            self.fall_behind()
        fills = rows_before < self._block_rows <= self.rows or rows_before < self.most_rows <= self.rows
        return rows_before == 0 or fills or self.behind

    def fall_behind(self) -> None:
        self.behind = self.catching_up = True
        self._submissions = deque(one for one in self._submissions if one[1])
        self.rows = sum(len(rows) for rows, _ in self._submissions)

    def take(self, position_index: int, position: int | None, now_ns: int) -> list[Row]:
        """Rows of the next block in order, without those at or below `position` that were read from the source."""
        most = self.most_rows
        taken: list[Row] = []
        while self._submissions and len(taken) < most:
            rows, late = self._submissions.popleft()
            self.rows -= len(rows)
            if not late and position is not None and rows[0][position_index] <= position:
                rows = [row for row in rows if row[position_index] > position]
            wanted = most - len(taken)
            taken += rows[:wanted]
            pieces = [rows[at : at + most] for at in range(wanted, len(rows), most)]
            self._submissions.extendleft((piece, late) for piece in reversed(pieces))
            self.rows += max(len(rows) - wanted, 0)
        self.first_at_ns = now_ns
        return taken


__all__ = ["WaitingRows"]
