"""TIDE while memory moves between hot and waiting rows: no row is lost, changed or answered twice, and none is held too much."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.join.streams import ROWS, STREAM, batch, build
from tests.join.tides import finished, repeated, tide

from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.join.protocol import StepReport
from tidemill.join.tide import TideJoin
from tidemill.master import MasterData
from tidemill.testing.zipf import Zipf

SHARES = (0.8, 0.02, 0.5, 0.05, 0.35)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    return build(tmp_path_factory.mktemp("m"))


def moving(join: TideJoin, batches: list[pa.RecordBatch], every: int = 5) -> Iterator[StepReport]:
    """The join driven, with another share wanted every few steps."""
    for number, report in enumerate(drive(join, batches)):
        held = join.budget.holdings()
        assert all(report.held_bytes[name] <= held[name] for name in ("hot_rows", "waiting"))
        if number % every == 0:
            join._resize_to = SHARES[number // every % len(SHARES)]
        yield report


def answers(reports: list[StepReport], columns: list[str]) -> Counter[tuple[Any, ...]]:
    outputs = [output.select(columns) for report in reports for output in report.outputs]
    return Counter(tuple(row.values()) for output in outputs for row in output.to_pylist())


@pytest.mark.parametrize("zipf", [0.0, 1.0])
@pytest.mark.parametrize("memory_bytes", [300_000, 1_500_000])
def test_every_row_gets_its_answer_while_memory_moves(master: MasterData, memory_bytes: int, zipf: float):
    keys = Zipf(ROWS, exponent=zipf, seed=3, spread=True).draw(60_000)
    rows = pa.record_batch([pa.array(np.arange(len(keys))), pa.array(keys)], schema=STREAM)
    join = tide(master, memory_bytes)
    shares = []

    def watched() -> Iterator[StepReport]:
        for report in moving(join, [rows]):
            shares.append(round(join.sizes.hot_share, 2))
            yield report

    reports = finished(watched())
    assert len(set(shares)) >= 3, "memory did not move"
    assert answers(reports, ["row", "key", "half"]) == Counter(
        {(row, key, key / 2): 1 for row, key in enumerate(keys.tolist())}
    )
    assert join.budget.held_bytes == join.sizes.total_bytes == memory_bytes


def test_rows_of_open_length_get_their_answer_too(master: MasterData):
    schema = pa.schema([("row", pa.int64()), ("key", pa.int64()), ("note", pa.string())])
    keys = np.random.default_rng(4).integers(0, ROWS, 20_000)
    notes = pa.array(["n" * (number % 60) for number in range(len(keys))])
    rows = pa.record_batch([pa.array(np.arange(len(keys))), pa.array(keys), notes], schema=schema)
    join = make_join("tide", master, schema, stream_key="key", budget=MemoryBudget(1_000_000), how="left")
    assert isinstance(join, TideJoin)
    reports = finished(moving(join, [rows]))
    assert answers(reports, ["row", "half"]) == Counter(
        {(row, key / 2): 1 for row, key in enumerate(keys.tolist())}
    )


def test_keys_with_many_rows_give_each_match_once_while_memory_moves(tmp_path: Path):
    store = repeated(tmp_path, {key: 400 if key == 7 else 3 for key in range(300)})
    join = tide(store, 400_000)
    keys = np.where(np.arange(3000) % 50 == 0, 7, np.arange(3000) % 300)
    reports = finished(moving(join, [batch(keys)], every=3))
    expected = Counter({row: 400 if key == 7 else 3 for row, key in enumerate(keys.tolist())})
    seen = answers(reports, ["row"])
    assert seen == Counter({(row,): times for row, times in expected.items()})


def test_a_snapshot_between_a_wish_and_its_move_is_restored(master: MasterData):
    join = tide(master, 1_000_000)
    keys = np.random.default_rng(6).integers(0, ROWS, 30_000)
    steps = drive(join, [batch(keys)])
    before = [next(steps) for _ in range(12)]
    join._resize_to = 0.8
    snapshot, taken = join.snapshot(), sum(report.rows_in for report in before)
    other = tide(master, 1_000_000)
    other.restore(snapshot)
    after = finished(other.drain())
    assert sum(report.emitted_rows for report in [*before, *after]) >= taken


def test_skew_that_comes_late_gives_hot_rows_more_and_uniform_rows_take_it_back(tmp_path: Path):
    store = build(tmp_path, wider_by=200)  # 4.6 MB: reads are dear enough
    join = tide(store, 300_000)
    skewed, uniform = (Zipf(ROWS, exponent=zipf, seed=3, spread=True) for zipf in (1.25, 0.0))
    shares = []
    for stream, batches in ((uniform, 8), (skewed, 4), (uniform, 40)):
        finished(drive(join, [batch(stream.draw(5_000)) for _ in range(batches)]))
        shares.append(join.sizes.hot_share)
    assert shares[0] == pytest.approx(0.02, abs=0.01)
    assert shares[1] > 3 * shares[0]
    assert shares[2] < shares[1] / 2
