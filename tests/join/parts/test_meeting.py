"""Rows that meet hot rows and wait in one compiled call fare as they do by a probe and what follows it."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.join.output import OutputPlan
from tidemill.join.parts import sifting_kernels as sifting
from tidemill.join.parts.frequency import FrequencySketch
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.probe_join import ProbeJoin, may_meet
from tidemill.join.parts.row_cache import RowCache
from tidemill.join.parts.shared_cache import SharedRowCache
from tidemill.join.parts.waiting_room import WaitingRoom
from tidemill.join.protocol import StepReport
from tidemill.join.tide import TideJoin
from tidemill.master import MasterData
from tidemill.master.rows import RowLayout

MASTER = pa.schema([("id", pa.int64()), ("name", pa.string())])
STREAM = pa.schema([("key", pa.int64()), ("event", pa.int32()), ("price", pa.float64())])
LAYOUT = RowLayout.of(MASTER)
FIRST_CODES = np.array([100, 150, 400, 401, 900], dtype=np.int64)
OFTEN = 2
KINDS = ["own", "shared"]


def hot_rows(kind: str, folder: Path, chance: np.random.Generator, size_bytes: int) -> Any:
    """Codes from 0 to 1,000: a third is hot, if there is room; every fifth of those does not exist."""
    hot: Any
    if kind == "own":
        hot = RowCache(size_bytes, 48, LAYOUT, keeps_rows=True)
    else:
        file = folder / f"{len(list(folder.iterdir()))}.hot"  # a new one
        hot = SharedRowCache(file, 4096 + size_bytes, 48, LAYOUT, "")
        with hot.used_for(1, 1, lambda *_: None):
            pass
    codes = chance.permutation(1000)[:330].astype(np.int64)
    batch = pa.record_batch([codes, [f"n{c}" * (1 + c % 4) for c in codes.tolist()]], schema=MASTER)
    rows, at = LAYOUT.encode(batch)
    matches = (codes % 5 > 0).astype(np.int64)
    hot.admit(rows, at[:-1], np.arange(len(codes)), matches, codes, np.ones(len(codes), dtype=np.uint32))
    return hot


def room(rows: int) -> WaitingRoom:
    layout = RowLayout.of(STREAM)
    return WaitingRoom(rows * (layout.least_row_bytes + 9), layout, len(FIRST_CODES), 20, "key")


def stream(rows: int, chance: np.random.Generator) -> pa.RecordBatch:
    keys = chance.integers(0, 1100, rows)
    columns = [pa.array(keys), pa.array(np.arange(rows, dtype=np.int32)), pa.array(chance.random(rows))]
    return pa.RecordBatch.from_arrays(columns, schema=STREAM)


def sources_of(batch: pa.RecordBatch) -> Int64s:
    lines = [[column.buffers()[1].address, column.type.bit_width // 8, 0] for column in batch.columns]  # type: ignore[union-attr]
    return np.array(lines, dtype=np.int64)


def state_of(waiting: WaitingRoom, sketch: FrequencySketch, hits: Any) -> list[Any]:
    """All that a piece may change."""
    slots = waiting.waiting_slots()
    rows = waiting.decode(slots).to_pylist()
    counted = (waiting.count.tolist(), waiting.since.tolist(), waiting.free_rows, waiting.waiting_rows)
    return [rows, counted, sketch.counters.tolist(), hits.tolist()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_one_call_does_what_probe_and_sift_do(kind: str, seed: int, tmp_path: Path) -> None:
    """Same places, same rows in the room, same sketch and hits; with a full room, with full hot rows, with absent keys."""
    chance = np.random.default_rng(seed)
    batch = stream(int(chance.integers(0, 700)), chance)
    codes = batch.column("key").to_numpy()
    present = np.ones(len(codes), dtype=np.bool_) if seed % 2 else chance.random(len(codes)) < 0.9
    size_bytes, most_rows = (4_000, 12_000, 60_000)[seed % 3], int(chance.choice([1, 8, 60, 2000]))
    found = []
    for is_met in (True, False):
        hot = hot_rows(kind, tmp_path, np.random.default_rng(seed), size_bytes)
        waiting, sketch = room(most_rows), FrequencySketch(2048, is_short=True)
        most, sources = waiting.free_rows, sources_of(batch)
        if is_met:
            waits = (FIRST_CODES, sketch.counters, OFTEN, *waiting.ways_in(sources))
            known, at, result = hot.meet(codes, present, waits, most)
            until = int(result[sifting.UNTIL])
        else:
            # Rows beyond the last one that can wait have been looked at in vain, and their hits are counted twice.
            places, matches, sizes = hot.probe(codes[:until], present[:until])
            known = np.empty_like(places)
            told = (FIRST_CODES, sketch.counters, OFTEN, sources)
            result = waiting.sift((places, matches, sizes, known), codes[:until], *told)
            known, at = (part[: result[sifting.KNOWN]] for part in (known, places))
        assert hot.is_full == (size_bytes < 60_000)
        found.append(
            [known.tolist(), at.tolist(), result.tolist(), *state_of(waiting, sketch, hot._table)],
        )
    assert found[0] == found[1]
    is_waiting = np.setdiff1d(np.arange(until), known)
    assert len(is_waiting) + len(known) == until
    assert (codes[is_waiting] >= FIRST_CODES[0]).all()
    if until < len(codes):  # the next one would have waited, had there been room
        assert waiting.waiting_rows == most == len(is_waiting)
        assert present[until]
        assert codes[until] >= FIRST_CODES[0]
        assert hot.probe(codes[until : until + 1], present[until : until + 1])[1][0] == -1


def test_an_entry_that_came_before_its_rows_is_a_miss(tmp_path: Path) -> None:
    chance = np.random.default_rng(5)
    hot = hot_rows("shared", tmp_path, chance, 60_000)
    batch = stream(600, chance)
    codes, present = batch.column("key").to_numpy(), np.ones(600, dtype=np.bool_)
    before = np.count_nonzero(hot.probe(codes, present)[1] >= 0)
    hot.rows[:8000].view(np.int64)[:] = -1  # as if others were still writing the first groups
    places, matches, _ = hot.probe(codes, present)
    waiting, sketch = room(2000), FrequencySketch(2048, is_short=True)
    waits = (FIRST_CODES, sketch.counters, OFTEN, *waiting.ways_in(sources_of(batch)))
    known, at, result = hot.meet(codes, present, waits, 2000)
    is_known = (matches >= 0) | (codes < FIRST_CODES[0])
    assert 0 < np.count_nonzero(matches >= 0) < before
    assert known.tolist() == np.flatnonzero(is_known).tolist()
    assert at.tolist() == places[is_known].tolist()
    assert int(result[sifting.MISSES]) == waiting.waiting_rows == np.count_nonzero(~is_known)


# In the join.


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    keys = np.arange(10, 60_010, 3)
    rows = pa.table({"id": keys, "name": [f"product {key}" * (1 + key % 5) for key in keys]})
    return MasterData.build(rows, key="id", path=tmp_path_factory.mktemp("master"), page_bytes=4096)


def arrivals(rows: int) -> pa.RecordBatch:
    chance = np.random.default_rng(3)
    often, any_key = 10 + 3 * chance.integers(0, 60, rows), chance.integers(0, 60_010, rows)
    keys = np.where(
        chance.random(rows) < 0.6, often, any_key
    )  # some do not exist, some lie before all others
    columns = [pa.array(keys), pa.array(np.arange(rows, dtype=np.int32)), pa.array(chance.random(rows))]
    return pa.RecordBatch.from_arrays(columns, schema=STREAM)


def join_of(master: MasterData, how: str, memory_bytes: int, hot: Any = None) -> Any:
    options: Any = {"stream_key": "key", "how": how}
    if hot is None:
        return make_join("tide", master, STREAM, budget=MemoryBudget(memory_bytes), **options)
    plan = OutputPlan.of(STREAM, master.schema, master_key=master.key, **options)
    return TideJoin(master, plan, MemoryBudget(memory_bytes), hot=hot)


def counts_of(report: StepReport) -> tuple[int, ...]:
    fates = (report.emitted_rows, report.dropped_rows, report.hot_hits, report.disk_matches, report.unmatched)
    return (report.rows_in, report.waited_rows, *fates, report.pages_read)


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory_bytes", [120_000, 400_000])
def test_a_join_gives_the_same_in_every_step(
    memory_bytes: int,
    kind: str,
    how: str,
    master: MasterData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = arrivals(30_000)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    found: list[Any] = []
    for meets in (True, False):
        if not meets:
            monkeypatch.setattr("tidemill.join.tide.may_meet", lambda *_: False)
        hot = None
        if kind == "shared":
            row_bytes = master.stored_row_bytes
            hot = SharedRowCache(tmp_path / f"{meets}.hot", 60_000, row_bytes, master.layout, "")
            with hot.used_for(1, 1, lambda *_: None):
                pass
        join = join_of(master, how, memory_bytes, hot)
        met = []
        sees = ProbeJoin._meet_hot_rows
        monkeypatch.setattr(
            ProbeJoin, "_meet_hot_rows", lambda *a, met=met, sees=sees: met.append(sees(*a)) or met[-1]
        )
        reports, pending = [], []
        for report in drive(join, [batch.slice(0, 11_000), batch.slice(11_000)]):
            reports.append(counts_of(report) + tuple(output.num_rows for output in report.outputs))
            pending.append(join.pending_rows)
            for output in report.outputs:
                output.validate(full=True)
        monkeypatch.setattr(ProbeJoin, "_meet_hot_rows", sees)
        assert bool([piece for piece in met if piece is not None]) is meets
        found.append((reports, pending, join._sketch.counters.tolist()))
    assert found[0][2] == found[1][2]
    assert found[0][1] == found[1][1]
    assert found[0][0] == found[1][0]


@pytest.mark.parametrize("how", ["left", "inner"])
def test_hits_that_do_not_fit_leave_in_pieces(
    how: str, master: MasterData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a snapshot between two of them has those that have not left, and only those."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    batch = arrivals(4_000)
    join, again = (join_of(master, how, 400_000) for _ in range(2))
    for _ in drive(join, [batch, batch]):
        pass
    monkeypatch.setattr(type(join), "_hits_bytes", property(lambda _: 5_000))
    gone, pieces = Counter[str](), 0
    join.offer(batch.slice(0, join.room()))
    offered = join.pending_rows
    settled = 0
    while pieces < 3:
        report = join.step()
        settled += report.emitted_rows + report.dropped_rows
        rows = [row for output in report.outputs for row in output.to_pylist()]
        gone.update(map(str, rows))
        assert report.hot_hits + report.disk_matches == sum(row["name"] is not None for row in rows)
        pieces += join._leaving is not None
        assert join.pending_rows == offered - settled
    again.restore(join.snapshot())
    assert again.pending_rows == join.pending_rows
    rest = Counter(str(row) for r in again.drain() for output in r.outputs for row in output.to_pylist())
    whole = join_of(master, how, 400_000)
    wanted = Counter(
        str(row) for r in drive(whole, [batch.slice(0, offered)]) for o in r.outputs for row in o.to_pylist()
    )
    assert gone + rest == wanted


def test_only_unique_keys_meet(tmp_path: Path, master: MasterData) -> None:
    twice = MasterData.build(pa.table({"id": [1, 1, 2], "name": ["a", "b", "c"]}), key="id", path=tmp_path)
    told = {"stream_key": "key", "master_key": master.key}
    for how in ("inner", "left", "semi", "anti"):
        plan = OutputPlan.of(STREAM, master.schema, how=how, **told)  # type: ignore[arg-type]
        assert may_meet(master, plan) is (how in ("inner", "left"))
        assert not may_meet(twice, OutputPlan.of(STREAM, twice.schema, how=how, **told))  # type: ignore[arg-type]
