"""What each join costs beside reads and the parts of a row: short runs of the join itself, with its operations counted."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
import pyarrow as pa

from tidemill.core.errors import BudgetError
from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.lab.virtual import OVERLAPPED, Counting, Counts, state_of
from tidemill.master import MasterData
from tidemill.model.calibration import JoinOverhead
from tidemill.model.catalog import MODELLED
from tidemill.model.popularity import Floats
from tidemill.model.prediction import SteadyState
from tidemill.model.work import Costs
from tidemill.model.workload import Workload
from tidemill.testing.zipf import Zipf

MEMORY_BYTES = (2**20, 2**23)
"""Beside the index: with little memory a row has many steps, with more it has few."""
SECONDS = 0.4
"""Of each run, after as long a warm-up."""
_SAMPLED_PAGES = 1024
_BATCH_ROWS = 50_000
_BATCHES = 8
_ZIPF = 1.0


@dataclass(frozen=True)
class Timed:
    """One run: what a stream row took, and what was done for it."""

    row_seconds: float
    state: SteadyState


def overheads(master: MasterData, costs: Mapping[str, Costs]) -> Iterator[tuple[str, JoinOverhead]]:
    """Of every join that has a model, by name.

    Args:
        master: The store, as joins will read it.
        costs: Of each join without what is to be found: reads, lookups and parts of rows.
    """
    schema, batches = _stream(master)
    for name in MODELLED:
        runs = []
        for memory_bytes in MEMORY_BYTES:
            try:
                runs.append(_timed(name, master, schema, batches, memory_bytes + 2 * master.index_bytes))
            except BudgetError:  # more than that is needed at least
                continue
        if runs:
            yield name, fitted(name, runs, costs[name])


def _timed(
    name: str, master: MasterData, schema: pa.Schema, batches: list[pa.RecordBatch], memory_bytes: int
) -> Timed:
    join = make_join(
        name, master, schema, stream_key=list(schema.names[:-1]), budget=MemoryBudget(memory_bytes)
    )
    row_bytes = -(-batches[0].nbytes // batches[0].num_rows)
    workload = Workload.of(master, stream_row_bytes=row_bytes, zipf_exponent=_ZIPF)
    counting = Counting(join, master, workload, cycle(batches))
    before, _ = _run(counting)
    after, seconds = _run(counting)
    counted = after - before
    return Timed(seconds / max(1, counted.finished), state_of(name, master, counted, counting.held))


def _run(counting: Counting) -> tuple[Counts, float]:
    started = time.perf_counter()
    while (seconds := time.perf_counter() - started) < SECONDS:
        now = counting.step()
    return now, seconds


def fitted(name: str, runs: list[Timed], costs: Costs) -> JoinOverhead:
    """What a row and a step must cost for runs to take as long as they did, neither below zero."""
    known = replace(costs, stream_row_seconds=0.0, step_seconds=0.0)
    rest = np.array([max(0.0, run.row_seconds - _known_seconds(name, run.state, known)) for run in runs])
    steps = np.array([run.state.work_per_row.steps for run in runs])
    weight = 1 / np.array([run.row_seconds for run in runs])
    per_row, per_step = weight, steps * weight
    choices = [
        np.array([0.0, _along(per_step, rest * weight)]),
        np.array([_along(per_row, rest * weight), 0.0]),
    ]
    both = np.linalg.lstsq(np.stack([per_row, per_step], axis=1), rest * weight, rcond=None)[0]
    if both.min() >= 0:
        choices.append(both)
    best = min(
        choices, key=lambda one: float(np.square(one[0] * per_row + one[1] * per_step - rest * weight).sum())
    )
    return JoinOverhead(stream_row_seconds=float(best[0]), step_seconds=float(best[1]))


def _along(direction: Floats, wanted: Floats) -> float:
    return float(direction @ wanted / max(1e-300, float(direction @ direction)))


def _known_seconds(name: str, state: SteadyState, known: Costs) -> float:
    """Of a row, without what is to be found. Where reads overlap with work, the processor is taken to be what limits."""
    parts = state.seconds_by_part(known)
    read = parts.pop("read")
    return sum(parts.values()) + (0.0 if name in OVERLAPPED else read)


def _stream(master: MasterData) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Stream rows with keys of pages from all over the store, some far more popular than others, and a number each."""
    pages = np.unique(np.linspace(0, master.pages - 1, min(master.pages, _SAMPLED_PAGES)).astype(np.int64))
    keys = master.read_batch(pages).select(list(master.key_columns))
    draw = Zipf(keys.num_rows, exponent=_ZIPF, seed=7, spread=True)
    names = [*(f"of_{name}" for name in keys.schema.names), "event"]
    numbers = pa.array(np.arange(_BATCH_ROWS))
    batches = [
        pa.RecordBatch.from_arrays([*keys.take(draw.draw(_BATCH_ROWS)).columns, numbers], names)
        for _ in range(_BATCHES)
    ]
    return batches[0].schema, batches


__all__ = ["Timed", "fitted", "overheads"]
