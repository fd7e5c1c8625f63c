"""Sums, counts and means from samples of a stream that was too fast, beside the true ones."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidemill.join.shedding.cluster import Cluster
from tidemill.join.shedding.estimates import (
    Estimate,
    mean_of_clusters,
    sum_of_clusters,
    sum_of_sample,
)
from tidemill.join.shedding.sample import Sample
from tidemill.join.shedding.strategy import CONFIDENCE, Floats, Int64s, Strategy
from tidemill.lab.experiment import Experiment, Finding, Setting
from tidemill.lab.shed_streams import ShedData, rounds_of

RUNS = 200
LEAST_WITHIN = 0.95
ROOM_ROWS = 1_000
SPEEDS = (1.25, 2.0, 4.0)


@dataclass(frozen=True)
class _Stream:
    """One stream: what each row adds to a sum, over all its results, and how many they are."""

    values: Floats
    results: Floats

    @property
    def results_sum(self) -> float:
        return float(self.results.sum())


@dataclass(frozen=True)
class _Kept:
    """The kept rows of all rounds, by number, with their chances; the edges of the rounds."""

    rows: list[Int64s]
    shares: list[Floats]
    arrived: list[int]


_TRUTHS: dict[str, Callable[[_Stream], float]] = {
    "sum": lambda s: float(s.values.sum()),
    "count": lambda s: s.results_sum,
    "mean": lambda s: float(s.values.sum()) / s.results_sum,
}


def run(setting: Setting) -> Finding:
    rounds = 5 if setting.quick else 20
    within: dict[str, list[bool]] = {}
    widths: dict[str, list[float]] = {}
    for seed in range(RUNS):
        setting.progress("sampling streams", seed / RUNS)
        speed = SPEEDS[seed % len(SPEEDS)]
        step_rows = round(speed * ROOM_ROWS)
        for many_to_many in (False, True):
            stream = _drawn(setting.seed + seed, rounds * step_rows, many_to_many=many_to_many)
            for name, found in _estimates(stream, step_rows, seed, many_to_many=many_to_many).items():
                truth = _TRUTHS[name.split()[-1]](stream)
                low, high = found.bounds()
                within.setdefault(name, []).append(low <= truth <= high)
                widths.setdefault(name, []).append(found.error() / abs(truth))
    shares = {name: float(np.mean(hits)) for name, hits in within.items()}
    worst = min(shares, key=lambda name: shares[name])
    told = ", ".join(
        f"{name} {share:.1%} (± {np.median(widths[name]):.1%})" for name, share in shares.items()
    )
    return Finding(
        holds=shares[worst] >= LEAST_WITHIN,
        measured=f"within the bounds stated at {CONFIDENCE:.0%} in {RUNS} runs, with the width of the bounds: {told}",
        reason="" if shares[worst] >= LEAST_WITHIN else f"{worst} lies within in {shares[worst]:.1%} only",
        values={f"within {name}": share for name, share in shares.items()},
    )


def _drawn(seed: int, rows: int, *, many_to_many: bool) -> _Stream:
    """Sales of lognormal amounts; with many matches a row counts once for each."""
    data = ShedData(master_rows=10_000, master_zipf=0.5, aligned=True, seed=seed)
    random = np.random.default_rng(seed)
    amounts = random.lognormal(3.0, 1.0, rows)
    if not many_to_many:
        return _Stream(amounts, np.ones(rows))
    counts = data.drawn_counts()
    prices = counts * random.lognormal(0.0, 0.5, len(counts))
    keys = data.streams(rows)[0]
    return _Stream(amounts * prices[keys], counts[keys])


def _estimates(stream: _Stream, step_rows: int, seed: int, *, many_to_many: bool) -> dict[str, Estimate]:
    if many_to_many:
        kept = _kept(Cluster(), stream, step_rows, seed)
        rows, shares = np.concatenate(kept.rows), np.concatenate(kept.shares)
        values, results = stream.values[rows], stream.results[rows]
        return {
            "cluster sum": sum_of_clusters(values, shares),
            "cluster count": sum_of_clusters(results, shares),
            "cluster mean": mean_of_clusters(values, results, shares),
        }
    kept = _kept(Sample(), stream, step_rows, seed)
    total = _added(stream.values, kept)
    return {"sample sum": total, "sample mean": total.scaled(1 / len(stream.values))}


def _added(values: Floats, kept: _Kept) -> Estimate:
    parts = [
        sum_of_sample(values[rows], arrived_rows=arrived)
        for rows, arrived in zip(kept.rows, kept.arrived, strict=True)
    ]
    return sum(parts[1:], parts[0])


def _kept(strategy: Strategy, stream: _Stream, step_rows: int, seed: int) -> _Kept:
    kept = _Kept([], [], [])
    for done in rounds_of(strategy, stream.results, room_rows=ROOM_ROWS, step_rows=step_rows, seed=seed):
        kept.rows.append(np.concatenate([batch.column("row").to_numpy() for batch in done.kept]))
        kept.shares.append(np.concatenate(done.shares or [np.empty(0)]))
        kept.arrived.append(done.report.arrived_rows)
    return kept


EXPERIMENTS = [
    Experiment(
        id="shed-bounds",
        claim="sums, counts and means estimated from Sample-w and cluster sampling lie within their stated bounds in at "
        "least 95 % of 200 seeded runs",
        source="MESHJOIN paper, §4.1, Table 2: what the two sampling strategies permit",
        sizes="200 streams at 1.25, 2 and 4 times the sustainable rate, a room of 1,000 rows, 10,000 master rows; "
        "full: 20 rounds a stream; quick: 5",
        run=run,
    )
]

__all__ = ["EXPERIMENTS"]
