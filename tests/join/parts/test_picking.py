"""Reads that keep only wanted rows: the same rows leave as by whole pages, also where such a read must stop."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.join.streams import batch, build_uneven, join_on

from tidemill.core.errors import StoreError
from tidemill.join.drive import drive
from tidemill.join.parts import picking
from tidemill.join.parts.picking import Picked, Picker
from tidemill.join.protocol import SemiStreamJoin, StepReport
from tidemill.join.tide import TideJoin
from tidemill.master import MasterData, page_writer

KEYS = 8_000
MEMORY_BYTES = 8_000_000


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    return build_uneven(tmp_path_factory.mktemp("m"), KEYS)


@pytest.fixture
def stream() -> list[pa.RecordBatch]:
    chance = np.random.default_rng(2)
    return [batch(chance.integers(0, 2 * KEYS, 5_000)) for _ in range(3)]


@pytest.fixture
def picked(monkeypatch: pytest.MonkeyPatch) -> list[Picked]:
    """Every read of this kind that arrives, as it is then."""
    seen: list[Picked] = []
    arrive = Picked.arrive

    def watched(self: Picked, of: MasterData) -> Any:
        seen.append(self)
        return arrive(self, of)

    monkeypatch.setattr(Picked, "arrive", watched)
    return seen


def tide(master: MasterData, **options: Any) -> TideJoin:
    join = join_on("tide", master, MEMORY_BYTES, **{"how": "left", **options})
    assert isinstance(join, TideJoin)
    return join


def rows_of(join: SemiStreamJoin, stream: list[pa.RecordBatch]) -> Counter[str]:
    return rows_in(list(drive(join, stream)))


def rows_in(reports: list[StepReport]) -> Counter[str]:
    return Counter(str(row) for report in reports for out in report.outputs for row in out.to_pylist())


@pytest.fixture
def expected(
    master: MasterData, stream: list[pa.RecordBatch], monkeypatch: pytest.MonkeyPatch
) -> Counter[str]:
    """What leaves when whole pages are read."""
    with monkeypatch.context() as patch:
        patch.setattr(Picker, "is_able", False)
        return rows_of(tide(master), stream)


def test_the_same_rows_leave_as_by_whole_pages(
    master: MasterData, stream: list[pa.RecordBatch], expected: Counter[str], picked: list[Picked]
):
    join = tide(master)
    reports = list(drive(join, stream))
    assert rows_in(reports) == expected
    for report in reports:
        assert report.held_bytes["disk_buffer"] <= join.sizes.disk_buffer_bytes
        assert report.pages_read <= join.sizes.pages_per_step
    assert any(report.held_bytes["disk_buffer"] for report in reports)
    assert picked
    assert all(read.left_over is None for read in picked)
    assert max(len(np.unique(read.codes)) for read in picked) > 100
    # A master row is kept once, however many wait for it.
    for read in picked:
        _, first = np.unique(read.codes, return_index=True)
        assert len(read.page.at) == read.matches[first].sum()


def test_regions_whose_rows_find_no_room_are_served_later(
    master: MasterData,
    stream: list[pa.RecordBatch],
    expected: Counter[str],
    picked: list[Picked],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(picking, "_FILL", 100.0)
    join = tide(master)
    join._picker.size_bytes = 280_000
    assert rows_of(join, stream) == expected
    stopped = [read for read in picked if read.left_over is not None]
    assert any(len(read.slots) for read in stopped), "no read stopped half way"


def test_a_damaged_page_is_named_after_rows_before_it_have_left(
    tmp_path: Path, stream: list[pa.RecordBatch], picked: list[Picked]
):
    table = pa.table({"id": np.arange(2 * KEYS), "name": ["some name"] * 2 * KEYS})
    MasterData.build(table, key="id", path=tmp_path, page_bytes=4096)
    file = max(tmp_path.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    content = bytearray(file.read_bytes())
    content[4096 * 70 + 100] ^= 1
    file.write_bytes(content)
    join = tide(MasterData.open(tmp_path, reads_in_flight=2))
    with pytest.raises(StoreError, match=r"page 70 of .* fails its checksum") as refusal:
        rows_of(join, stream)
    assert refusal.value.code == "page_corrupt"
    assert any(read.left_over is not None for read in picked)


def test_rows_of_a_read_under_way_are_in_a_snapshot(
    master: MasterData, stream: list[pa.RecordBatch], expected: Counter[str]
):
    join, found = tide(master), Counter[str]()
    was_under_way = False
    for arrivals in stream:
        join.offer(arrivals.slice(0, 2_500))
        join.offer(arrivals.slice(2_500))
        while join._arrivals.rows:
            report = join.step()
            found.update(str(row) for out in report.outputs for row in out.to_pylist())
            was_under_way |= any(isinstance(read, Picked) for read in join._services)
            again = tide(master)
            again.restore(join.snapshot())
            assert again.pending_rows == join.pending_rows
            join = again
    for report in join.drain():
        found.update(str(row) for out in report.outputs for row in out.to_pylist())
        was_under_way |= any(isinstance(read, Picked) for read in join._services)
    assert was_under_way
    assert found == expected


@pytest.fixture
def even(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MasterData:
    """Equally long rows, some keys with several: in pages that tell where rows start, and in dense ones behind them."""
    keys = np.repeat(np.arange(KEYS) * 2, np.random.default_rng(1).integers(1, 4, KEYS))
    keys[keys > KEYS] **= 2  # unevenly spread, so that guesses where one lies go wrong
    wide = pa.binary(100)
    table = pa.table(
        {"id": keys, "number": np.arange(len(keys)), "pad": pa.array([bytes(100)] * len(keys), wide)}
    )
    with monkeypatch.context() as patch:
        patch.setattr(page_writer, "kind_for", lambda _: 0)
        old = MasterData.build(table, key="id", path=tmp_path, page_bytes=4096)
    changed = keys[len(keys) // 3 : len(keys) // 2]
    pad = pa.array([bytes(100)] * len(changed), wide)
    changes = {"id": changed, "number": -changed, "pad": pad, "_op": ["insert"] * len(changed)}
    old.apply(pa.table(changes))
    return MasterData.open(tmp_path, reads_in_flight=2)


def test_rows_are_found_in_pages_of_both_kinds(even: MasterData, picked: list[Picked]):
    assert set(even.index.file.tolist()) == {0, 1}, "compacted, so that all pages are of one kind"
    chance = np.random.default_rng(2)
    keys = even.read_batch(range(even.pages)).column("id").to_numpy()
    stream = [batch(chance.choice(keys, 5_000) + chance.integers(0, 2, 5_000)) for _ in range(3)]
    expected = rows_of(join_on("inl", even, MEMORY_BYTES, how="left"), stream)
    assert rows_of(tide(even), stream) == expected
    kinds = {int(even.index.file[page]) for read in picked for page in read.pages}
    assert kinds == {0, 1}
    assert rows_of(tide(even.compact()), stream) == expected


@pytest.mark.parametrize("is_dense", [True, False])
def test_rows_are_found_by_short_codes(tmp_path: Path, picked: list[Picked], is_dense: bool):
    keys = np.repeat(np.arange(-KEYS, KEYS) * 2, np.random.default_rng(1).integers(1, 4, 2 * KEYS))
    keys[abs(keys) > KEYS] *= abs(keys[abs(keys) > KEYS]) // 4
    pads = ["x" * (n % 300 + 300 if not is_dense else 100) for n in range(len(keys))]
    table = pa.table({"id": keys, "number": np.arange(len(keys)), "pad": pads})
    for folder, pack in (("short", True), ("long", False)):
        MasterData.build(table, key="id", path=tmp_path / folder, page_bytes=4096, pack=pack)
    short = MasterData.open(tmp_path / "short", reads_in_flight=2)
    assert (short.layout.code_bytes, short.packing.has_nulls) == (4, False)
    assert (short.layout.last_open_offset < 0) == is_dense
    chance = np.random.default_rng(2)
    beyond = [2**31, -(2**31) - 1, int(keys[0]) + 2**32, int(keys[-1]) - 2**32]  # as short ones like others
    stream = [
        batch([*(chance.choice(keys, 5_000) + chance.integers(0, 2, 5_000)), *beyond]) for _ in range(3)
    ]
    expected = rows_of(join_on("inl", MasterData.open(tmp_path / "long"), MEMORY_BYTES, how="left"), stream)
    assert rows_of(tide(short), stream) == expected
    assert picked
    assert rows_of(join_on("inl", short, MEMORY_BYTES, how="left"), stream) == expected
