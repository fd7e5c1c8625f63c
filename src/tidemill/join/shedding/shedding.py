"""The buffer before a join that is too slow: it holds the rows that the join will get, and sheds the others."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.core.errors import SpecError
from tidemill.core.memory import MemoryBudget
from tidemill.join.shedding.strategy import Bools, Chosen, Floats, ShedReport, Strategy, UInt64s, top_rows

RESERVATION = "shedding"
WAITING = "rows that may be joined"
ROW_BYTES = 80
"""Of a row that waits, beside its columns: 24 for rank, draw and matches, 56 for orders of them while rows are chosen."""
_SLACK = 4
"""A quarter more than the room gathers before rows are cut back: at twice the room a row is copied twice at most, at ten times 1.3 times."""


@dataclass(frozen=True)
class Round:
    """What became of the rows that arrived since the round before."""

    kept: tuple[pa.RecordBatch, ...]
    """For the join, in the order of their arrival."""
    shares: tuple[Floats, ...] | None
    """For each of these batches, the chance of each row to be kept; None where the strategy permits no estimate."""
    matches: tuple[Floats, ...]
    """For each of these batches, the results that each row gives, by the counts."""
    shed: tuple[pa.RecordBatch, ...]
    """Rows that had waited until now; others were shed when they arrived."""
    report: ShedReport


@dataclass
class _Piece:
    rows: pa.RecordBatch
    ranks: Floats
    draws: UInt64s
    matches: Floats

    @property
    def bytes(self) -> int:
        return self.rows.nbytes + ROW_BYTES * self.rows.num_rows

    def only(self, mask: Bools) -> "_Piece":
        rows = self.rows if mask.all() else self.rows.filter(pa.array(mask))
        return _Piece(rows, self.ranks[mask], self.draws[mask], self.matches[mask])


class Shedding:
    """Takes all rows that arrive and hands over as many as the join has room for.

    ```
    arrive(batch) ─▶ rows shed at once      arrive(batch) ─▶ …      hand_over() ─▶ rows for the join, the rest shed
    ```
    A row has one fate: it is in what `arrive` gives, or in `kept` or in `shed` of the next `hand_over`. Rows beyond
    the memory are refused, never shed: their fate would hang on their size.

    Args:
        strategy: Which rows are kept.
        budget: Where the memory is set aside, by the name `shedding`; before a join is made, since that takes what is left.
        memory_bytes: For rows that wait: a quarter more than the room, and a batch.
        seed: Of the draws, where `arrive` is given none.
    """

    def __init__(self, strategy: Strategy, budget: MemoryBudget, *, memory_bytes: int, seed: int = 0) -> None:
        budget.reserve(RESERVATION, memory_bytes)
        self.strategy = strategy
        self._own = MemoryBudget(memory_bytes)
        self._random = np.random.default_rng(seed)
        self._room = 0
        self._begin()

    def _begin(self) -> None:
        self._pieces: list[_Piece] = []
        self._rows = 0
        self._bytes = 0
        self._least_rank = -np.inf
        """Rows below it are not among the first, whatever comes."""
        self._best_shed_rank = -np.inf
        self._arrived_rows = 0
        self._arrived_matches = 0.0

    @property
    def waiting_rows(self) -> int:
        return self._rows

    def open(self, room_rows: int) -> None:
        """Begin a round at whose end the join takes so many rows."""
        if self._arrived_rows:
            raise SpecError(
                f"{self._arrived_rows} rows have arrived since the round began",
                code="round_open",
                next_move="call hand_over before a new round",
            )
        self._room = max(0, room_rows)

    def narrow(self, room_rows: int) -> None:
        """Take less room than the round began with; the rows are those it would have been with less from the start."""
        self._room = max(0, min(self._room, room_rows))

    def arrive(
        self, batch: pa.RecordBatch, *, matches: Floats | None = None, draws: UInt64s | None = None
    ) -> tuple[pa.RecordBatch, ...]:
        """Rows that are shed now; the others of the batch wait, and may be shed later.

        Args:
            batch: What came.
            matches: Results that each row gives; 1 when left out.
            draws: Random numbers of the rows, over all 64 bits. Rows with draws that hang on their content have the
                same fate however often and in whatever order they arrive.
        """
        if matches is None:
            self._refuse_without_matches()
            matches = np.ones(batch.num_rows)
        if draws is None:
            draws = self._random.integers(0, 2**64, batch.num_rows, np.uint64)
        ranks = self.strategy.ranks(matches, draws, self._arrived_rows)
        self._arrived_rows += batch.num_rows
        self._arrived_matches += float(matches.sum())
        enters = ranks >= self._least_rank
        if not enters.all():
            self._best_shed_rank = max(self._best_shed_rank, float(ranks[~enters].max()))
        entering = _Piece(batch, ranks, draws, matches).only(enters)
        shed = () if enters.all() else (batch.filter(pa.array(~enters)),)
        self._take(entering)
        return (*shed, *self._cut()) if self._rows > self._room + self._room // _SLACK else shed

    def hand_over(self) -> Round:
        """The rows for the join; the next round begins."""
        shed = self._cut()
        kept_matches = np.concatenate([np.empty(0), *(piece.matches for piece in self._pieces)])
        chosen = Chosen(
            kept_matches=kept_matches,
            arrived_rows=self._arrived_rows,
            arrived_matches=self._arrived_matches,
            best_shed_rank=self._best_shed_rank,
        )
        is_whole = self._rows == self._arrived_rows
        shares = np.ones(self._rows) if is_whole else self.strategy.shares(chosen)
        edges = np.cumsum([piece.rows.num_rows for piece in self._pieces])[:-1]
        permits = self.strategy.goal == "sample" and shares is not None
        report = ShedReport(
            strategy=self.strategy.name,
            room_rows=self._room,
            arrived_rows=self._arrived_rows,
            kept_rows=self._rows,
            arrived_matches=self._arrived_matches,
            kept_matches=float(kept_matches.sum()),
            stated_error=0.0 if is_whole else self.strategy.stated_error(chosen),
            error_means=self.strategy.error_means,
        )
        done = Round(
            kept=tuple(piece.rows for piece in self._pieces),
            shares=tuple(np.split(shares, edges)) if permits and shares is not None else None,
            matches=tuple(piece.matches for piece in self._pieces),
            shed=shed,
            report=report,
        )
        self._begin()
        self._own.release(WAITING)
        return done

    def _take(self, piece: _Piece) -> None:
        if not piece.rows.num_rows:
            return
        # A piece is there twice while it is cut.
        longest = max(held.bytes for held in (piece, *self._pieces))
        self._own.reserve(WAITING, self._bytes + piece.bytes + longest)
        self._pieces.append(piece)
        self._rows += piece.rows.num_rows
        self._bytes += piece.bytes

    def _cut(self) -> tuple[pa.RecordBatch, ...]:
        """Rows beyond the room."""
        if self._rows <= self._room:
            return ()
        ranks = np.concatenate([piece.ranks for piece in self._pieces])
        draws = np.concatenate([piece.draws for piece in self._pieces])
        stays = top_rows(ranks, draws, self._room)
        self._best_shed_rank = max(self._best_shed_rank, float(ranks[~stays].max()))
        self._least_rank = float(ranks[stays].min()) if self._room else np.inf
        shed, at = [], 0
        for place, piece in enumerate(
            self._pieces
        ):  # each in its own place, so that one at most is there twice
            mask = stays[at : at + piece.rows.num_rows]
            at += piece.rows.num_rows
            if not mask.all():
                shed.append(piece.rows.filter(pa.array(~mask)))
                self._pieces[place] = piece.only(mask)
        self._pieces = [piece for piece in self._pieces if piece.rows.num_rows]
        self._rows = sum(piece.rows.num_rows for piece in self._pieces)
        self._bytes = sum(piece.bytes for piece in self._pieces)
        return tuple(shed)

    def _refuse_without_matches(self) -> None:
        if self.strategy.needs_matches:
            raise SpecError(
                f"the strategy {self.strategy.name!r} ranks rows by their matches",
                code="no_matches",
                next_move="give matches=, such as MatchCounts.of_rows(batch, key)",
            )


__all__ = ["RESERVATION", "ROW_BYTES", "Round", "Shedding"]
