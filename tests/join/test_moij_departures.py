"""What leaves MOIJ while the join goes on: another core puts it together, at its slowest when somebody waits for it."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.join.streams import ROWS, batch, build, join_on
from tests.laws.late_putter import LatePutter

from tidemill.join.drive import drive
from tidemill.join.moij import MoijJoin
from tidemill.join.output import How
from tidemill.join.parts import putter_kernels
from tidemill.join.parts.putter import Putter
from tidemill.join.protocol import StepReport
from tidemill.master import MasterData


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    return build(tmp_path_factory.mktemp("m"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Even single rows are handed over to a slow core; counts by what was asked for."""
    found: Counter[str] = Counter()

    class Counting(LatePutter):
        def ask(self, ask: Any, *arguments: Any) -> Any:
            found["hits" if ask is putter_kernels.ask_batch else "rounds"] += 1
            return super().ask(ask, *arguments)

    monkeypatch.setattr("tidemill.join.parts.aside._WORTH_ROWS", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("tidemill.join.moij.Putter", Counting)
    return found


def moij(master: MasterData, memory_bytes: int = 600_000, how: How = "left") -> MoijJoin:
    join = join_on("moij", master, memory_bytes, how=how)
    assert isinstance(join, MoijJoin)
    return join


def changing_taste(batches: int, seed: int, absent_share: float = 0.02) -> list[pa.RecordBatch]:
    """Keys that are popular for a while: hot rows go, and others take their places."""
    chance, found = np.random.default_rng(seed), []
    for number in range(batches):
        popular = 40 * number + chance.zipf(1.2, 2000) % 2000
        keys = np.where(chance.random(2000) < 0.8, popular, chance.integers(0, ROWS, 2000)) % ROWS
        found.append(batch(np.where(chance.random(2000) < absent_share, ROWS + keys, keys)))
    return found


def rows_of(reports: Iterable[StepReport]) -> Counter[tuple[Any, ...]]:
    outputs = [output for report in reports for output in report.outputs]
    return Counter(row for out in outputs for row in zip(*(c.to_pylist() for c in out.columns), strict=True))


def watched(join: MoijJoin, batches: Iterable[pa.RecordBatch]) -> Iterable[StepReport]:
    """Reports of a run in which each row has one fate and each part of the memory its bytes."""
    rows_in = finished = 0
    for report in drive(join, batches):
        reserved = join.budget.holdings()
        assert all(held <= reserved[part] for part, held in report.held_bytes.items())
        given_bytes = sum(out.nbytes for out in report.outputs)
        assert join._rounds.bytes_held + given_bytes <= report.held_bytes["output"]
        rows_in += report.rows_in
        finished += report.emitted_rows + report.dropped_rows
        assert rows_in == finished + join.pending_rows
        yield report


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("memory_bytes", [200_000, 600_000])
def test_nothing_that_departing_rows_look_at_changes(
    master: MasterData, asked: Counter[str], how: How, memory_bytes: int, monkeypatch: pytest.MonkeyPatch
):
    stream = changing_taste(40, seed=1)
    join = moij(master, memory_bytes, how)
    late = rows_of(watched(join, stream))
    assert min(asked["hits"], asked["rounds"]) > 20
    assert join._rows._evicted > 50, "hot rows never moved"
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    monkeypatch.setattr("tidemill.join.moij.Putter", Putter)
    alone = moij(master, memory_bytes, how)
    assert late == rows_of(watched(alone, stream))
    assert alone._putter._asked == 0


@pytest.mark.parametrize("every", [1, 2, 7])
def test_a_snapshot_has_what_is_on_its_way(master: MasterData, asked: Counter[str], every: int):
    stream = changing_taste(24, seed=2)
    join, reports, on_their_way = moij(master), [], Counter[str]()
    for number, piece in enumerate(stream):
        rest = piece
        while rest.num_rows:
            taken = min(rest.num_rows, join.room(rest.nbytes // rest.num_rows + 1))
            if taken:
                join.offer(rest.slice(0, taken))
                rest = rest.slice(taken)
            reports.append(join.step())
        on_their_way["hits"] += join._departures.hits_rows
        on_their_way["rounds"] += join._departures.served_rows
        if number % every == 0:
            snapshot, pending = join.snapshot(), join.pending_rows
            join = moij(master)
            join.restore(snapshot)
            assert join.pending_rows == pending
    reports += join.drain()
    assert min(on_their_way["hits"], on_their_way["rounds"]) > 0
    assert sum(report.emitted_rows for report in reports) == 24 * 2000
    assert rows_of(reports) == rows_of(drive(moij(master), stream))


def test_a_join_that_is_restored_forgets_what_was_on_its_way(master: MasterData, asked: Counter[str]):
    join = moij(master)
    empty = join.snapshot()
    for piece in changing_taste(10, seed=3):
        join.offer(piece.slice(0, join.room(piece.nbytes // piece.num_rows + 1)))
        join.step()
    assert join._departures
    join.restore(empty)
    assert join.pending_rows == 0
    assert join.step().output_rows == 0
    assert rows_of(drive(join, [batch([3, 4])])) == rows_of(drive(moij(master), [batch([3, 4])]))


def test_what_is_on_its_way_leaves_when_nothing_else_is_to_be_done(master: MasterData, asked: Counter[str]):
    join = moij(master)
    list(drive(join, [batch(np.repeat(np.arange(0, 300, 7), 9))] * 3))
    join.offer(batch(np.arange(0, 300, 7)))
    steps = list(join.drain())
    assert sum(report.hot_hits for report in steps) > 0
    assert sum(report.emitted_rows for report in steps) == 43
    assert len(steps) < 10
