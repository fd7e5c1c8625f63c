"""What a disk phase reads when the oldest waiting row chooses, and every row of what was read leaves."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tidemill.model.page_rates import PageRates
from tidemill.model.popularity import Floats

_BISECTIONS = 40
_ROUNDS = 30
_PRECISION = 1e-4
_EQUAL = 1e-9
_MOMENTS, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_LONGEST_AGE_ROWS = 1e15


@dataclass(frozen=True, kw_only=True)
class OldestFirst:
    """Phases that take turns: rows arrive and wait, then reads go on until few enough are left.

    A row that is older than a certain age when a phase ends was read for: that is what *oldest first* means. So a page
    is read in the first phase after its first waiting row has come to that age; with it leave all rows that wait for
    it. The age is found from the number of rows that are left when a phase ends. Where a read takes several pages, a page
    may be read because one before it was chosen; how often, and how much reads overlap, follows from the share of pages
    whose turn it is (`_Segments`).

    Time is counted in stream rows.
    """

    rates: PageRates
    rows_per_phase: float
    """Stream rows that pass from one phase to the next."""
    rows_left: float
    """Rows that wait when a phase ends."""
    segment_pages: int = 1
    """Pages read from the chosen one on."""

    @classmethod
    def half_of(
        cls, rates: PageRates, room_rows: float, *, rows_per_row: float | None = None, segment_pages: int = 1
    ) -> "OldestFirst":
        """Phases that begin with a full room and end with the read that leaves half of it or less.

        The last read finishes more rows than it need, half of its own on average; and it is more likely one that
        finishes many.

        Args:
            rates: Of the pages that are read.
            room_rows: That can wait.
            rows_per_row: Rows that take a place in the room, for one stream row; those that ask for pages if None.
            segment_pages: Pages read from the chosen one on.
        """
        places = max(1e-12, rates.asked_share if rows_per_row is None else rows_per_row)
        left = room_rows / 2
        for _ in range(_ROUNDS):
            phases = cls(
                rates=rates,
                rows_per_phase=(room_rows - left) / places,
                rows_left=left,
                segment_pages=segment_pages,
            )
            before, left = left, max(room_rows / 100, room_rows / 2 - phases.rows_of_a_read / 2)
            if abs(left - before) < 0.01 * room_rows:
                break
            left = (left + before) / 2
        return phases

    @cached_property
    def _solution(self) -> tuple[float, Floats]:
        """The age, and the share of pages of each class whose turn it is in a phase."""
        low, high = 0.0, self.rows_per_phase
        due = np.zeros_like(self.rates.pages)
        if self.rates.asked_share * _LONGEST_AGE_ROWS < self.rows_left:
            return _LONGEST_AGE_ROWS, due  # nobody asks
        # With many rows all ages between two phases leave as many: the least of them, whatever rounding makes of equals.
        wanted = self.rows_left * (1 - _EQUAL)
        while self._waiting(high, due)[0] < wanted and high < _LONGEST_AGE_ROWS:
            low, high = high, 2 * high
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            left, due = self._waiting(middle, due)
            low, high = (middle, high) if left < wanted else (low, middle)
            if high - low < _PRECISION * high:
                break
        return high, due

    def rows_left_at(self, age_rows: float) -> float:
        """Rows that would be left if rows were read for from this age on."""
        return self._waiting(age_rows, np.zeros_like(self.rates.pages))[0]

    def _waiting(self, age: float, due: Floats) -> tuple[float, Floats]:
        """Rows left by a phase if rows are read for from this age on, and whose turn it is."""
        for _ in range(_ROUNDS):
            waiting, new, _ = self._of_pages(age, self._passed_over(due))
            is_settled = self.segment_pages == 1 or float(np.abs(new - due).max()) < _PRECISION
            due = new if self.segment_pages == 1 else (due + new) / 2
            if is_settled:
                break
        return float(np.dot(self.rates.pages, waiting)), due

    def _passed_over(self, due: Floats) -> Floats:
        """Share of the pages of each class, their turn not come, that a phase leaves unread."""
        ridden = self._reached_share * (1 - _missed_share(self.segment_pages, self._near(due)))
        return np.broadcast_to(1 - ridden, due.shape)

    @cached_property
    def _reached_share(self) -> Floats:
        """How many of the reads that should reach a page whose turn has not come do so.

        Pages that were read together wait together, so fewer of them are near one whose turn it is. Fitted to simulated
        phases with segments of 2 to 128 pages: 1 where few rows come for a segment between two phases, less than a half
        where there are many rows and long segments.
        """
        none_came = self._near(np.exp(-self.rates.shares * self.rows_per_phase))
        rows_per_segment = -np.log(np.maximum(1e-300, none_came)) * self.segment_pages
        least = 0.42 + 0.72 * max(2, self.segment_pages) ** -0.5
        return np.asarray(least + (1 - least) / (1 + (rows_per_segment / 7.5) ** 1.3))

    def _near(self, shares: Floats) -> Floats:
        """Such a share among pages near one of each class; one number where classes lie scattered."""
        if self.rates.in_order:
            return shares
        return np.array([np.dot(self.rates.pages, shares) / self.rates.total_pages])

    def _of_pages(self, age: float, stays: Floats) -> tuple[Floats, Floats, Floats]:
        """For a page of each class: rows left by a phase on average, in how many phases it is its turn, and phases from
        one read to the next.

        After a read the first row comes after a time x with exponential distribution; it is the page's turn in the first
        phase that ends later than x + age, unless it is read with another before. Sums over phases since the read.
        """
        phase, rate = self.rows_per_phase, self.rates.shares
        sure = age // phase  # phases after which it cannot be the page's turn
        none_came = np.exp(-rate * phase)
        first = np.exp(-rate * ((sure + 1) * phase - age))
        survived = stays**sure
        later = survived * stays * first / np.maximum(1e-100, 1 - stays * none_came)
        number, ages = _sums_of_powers(stays, sure)
        phases = number + later
        rows = rate * (phase * ages + age * later)
        turns = survived * (1 - first) + later * (1 - none_came)
        asked = rate > 0
        return np.where(asked, rows / phases, 0.0), np.where(asked, turns / phases, 0.0), phases

    @cached_property
    def reads_per_phase(self) -> float:
        """Segments that a phase reads."""
        _, due = self._solution
        return float(np.dot(self.rates.pages, due * _first_share(self.segment_pages, self._near(due))))

    @property
    def rows_of_a_read(self) -> float:
        """Rows that leave together with a row, on average over rows: popular pages have most of them."""
        age, due = self._solution
        if not due.any():
            return 0.0
        _, _, phases = self._of_pages(age, self._passed_over(due))
        asked = self.rates.pages * self.rates.shares
        rows = self.rates.shares * phases * self.rows_per_phase
        if self.rates.in_order:
            edges = np.concatenate([[0.0], np.cumsum(self.rates.pages)])
            until = np.concatenate([[0.0], np.cumsum(self.rates.pages * rows)])
            rows = np.interp(edges[:-1] + self.segment_pages, edges, until) - until[:-1]
        else:
            rows += (self.segment_pages - 1) * np.dot(self.rates.pages, rows) / self.rates.total_pages
        return float(np.dot(asked, rows) / max(1e-300, asked.sum()))

    @property
    def reads_per_row(self) -> float:
        """For one stream row."""
        return self.reads_per_phase / self.rows_per_phase

    @property
    def age_rows(self) -> float:
        """Stream rows that pass until a row is read for, at most a phase less than it takes."""
        return self._solution[0]


def _sums_of_powers(base: Floats, last: float) -> tuple[Floats, Floats]:
    """Sums of base ** k and of k * base ** k over k = 0 … last."""
    short = np.maximum(1e-7, 1 - base)
    power = base**last
    number = (1 - base * power) / short
    weighted = base * (1 - power * (1 + last * short)) / short**2
    is_one = 1 - base < 1e-5 / (1 + last)  # where the differences above would drown in rounding
    return np.where(is_one, last + 1, number), np.where(is_one, last * (last + 1) / 2, weighted)


def _missed_share(segment_pages: int, due: Floats) -> Floats:
    """Chance that no read which began before a page took it, if it is the turn of this share of the pages before it.

    Reads begin in any order, each at a page not read yet, and go on for `segment_pages`. Let q be the chance that the turn
    of a page has not come: a run of unread pages is then one page longer with chance q, whatever its length. From that
    follows exp(-sum of (1 - q ** j) / j) over j = 1 … segment_pages - 1.
    """
    before = np.arange(1, segment_pages)
    chances = -np.expm1(np.log1p(-np.minimum(due, 1 - 1e-12))[:, None] * before)
    return np.asarray(np.exp(-chances @ (1 / before)))


def _first_share(segment_pages: int, due: Floats) -> Floats:
    """Of pages whose turn it is, those for which a read begins: the others were read with one before them."""
    moments = [_missed_share(segment_pages, due * (1 + x) / 2) for x in _MOMENTS]
    return np.asarray(np.dot(_WEIGHTS, moments) / 2)


__all__ = ["OldestFirst"]
