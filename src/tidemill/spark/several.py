"""One memory for several lookups: each gets the next piece where that saves most."""

from collections.abc import Callable, Sequence
from functools import cache, partial

from tidemill.core.errors import BudgetError
from tidemill.join.tide import TideJoin
from tidemill.master import MasterData
from tidemill.model.workload import Workload
from tidemill.spark.auto import ASSUMED_ZIPF, HostedModel, Wish, costs_of
from tidemill.spark.lookup import HostedLookup

_PIECES = 24
_LOOKS_AHEAD = (1, 2, 4)
_EVEN_SHARE = 0.1  # of what is divided by size, where no model can tell: even a small table needs its buffers

Seconds = Callable[[int], float]
"""Of a stream row by memory; infinite where it is too little."""


def divided_by_gain(
    lookups: Sequence[HostedLookup], masters: Sequence[MasterData], wish: Wish, workers: int
) -> list[int]:
    """Memory of each lookup; all of them together have what the wish says."""
    total = wish.memory_bytes or 0
    if len(lookups) == 1:
        return [total]
    if any(
        told.algorithm != TideJoin.name or not master.rows
        for told, master in zip(lookups, masters, strict=True)
    ):
        return _by_size(masters, total)
    seconds = [
        _seconds_of(told, master, wish, workers) for told, master in zip(lookups, masters, strict=True)
    ]
    return by_gain(seconds, total) or _by_size(masters, total)


def by_gain(seconds: Sequence[Seconds], total_bytes: int) -> list[int] | None:
    """Piece after piece to whom it saves most; None if there are not enough for everyone to work.

    >>> halves = [lambda size: 1e6 / size, lambda size: 4e6 / size]
    >>> [round(size / 1e6) for size in by_gain(halves, 24_000_000)]
    [8, 16]
    """
    piece = total_bytes // _PIECES
    costs = [cache(partial(_cost_of_pieces, cost, piece)) for cost in seconds]
    pieces = [
        next((n for n in range(1, _PIECES + 1) if cost(n) < float("inf")), _PIECES + 1) for cost in costs
    ]
    left = _PIECES - sum(pieces)
    if left < 0:
        return None

    def gain(which: int) -> float:
        """A piece, looking a little ahead: sizes are whole, so costs fall in steps."""
        cost, has = costs[which], pieces[which]
        return max((cost(has) - cost(has + more)) / more for more in _LOOKS_AHEAD)

    for _ in range(left):
        pieces[max(range(len(costs)), key=gain)] += 1
    return [n * piece for n in pieces]


def _cost_of_pieces(seconds: Seconds, piece_bytes: int, pieces: int) -> float:
    return seconds(pieces * piece_bytes)


def _seconds_of(told: HostedLookup, master: MasterData, wish: Wish, workers: int) -> Seconds:
    zipf = ASSUMED_ZIPF if wish.zipf_exponent is None else wish.zipf_exponent
    workload = Workload.of(master, stream_row_bytes=told.plan.stream_row_bytes, zipf_exponent=zipf)
    model = HostedModel(TideJoin.name, master, told.plan, workers)
    costs, _ = costs_of(master)

    def seconds(memory_bytes: int) -> float:
        try:
            sizes = model.default_sizes(workload, memory_bytes)
        except BudgetError:
            return float("inf")
        return 1 / model.steady_state(workload, sizes).rows_per_s(costs(TideJoin.name))

    return seconds


def _by_size(masters: Sequence[MasterData], total_bytes: int) -> list[int]:
    sizes = [max(1, master.rows * master.row_bytes) for master in masters]
    shares = [_EVEN_SHARE / len(sizes) + (1 - _EVEN_SHARE) * size / sum(sizes) for size in sizes]
    return [int(share * total_bytes) for share in shares]


__all__ = ["by_gain", "divided_by_gain"]
