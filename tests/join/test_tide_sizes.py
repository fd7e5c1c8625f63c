"""TIDE and its budget: sizes, snapshots and rows that do not fit, output inside its reservation."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.join.streams import ROWS, batch, build, totals
from tests.join.tides import finished, least_bytes, repeated, tide

from tidemill.core.errors import BudgetError, StoreError
from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.join.parts.waiting_room import WaitingRoom
from tidemill.join.protocol import StepReport
from tidemill.join.tide import TideJoin
from tidemill.master import MasterData


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    return build(tmp_path_factory.mktemp("m"))


def rows_of(reports: Iterable[StepReport]) -> list[dict[str, Any]]:
    return [row for report in reports for output in report.outputs for row in output.to_pylist()]


@pytest.mark.parametrize("total_bytes", [110_000, 1_000_000, 64_000_000])
def test_sizes_use_the_budget_and_never_more(master: MasterData, total_bytes: int):
    assert tide(master, total_bytes).sizes.total_bytes == total_bytes


def test_a_budget_too_small_names_the_least_that_works(master: MasterData):
    least = least_bytes(master)
    assert totals(drive(tide(master, least), [batch(range(50))]))["disk_matches"] == 50
    with pytest.raises(BudgetError):
        tide(master, least - 1)


def test_snapshots_of_another_kind_are_refused(master: MasterData):
    with pytest.raises(StoreError, match="snapshot is of a tide join"):
        tide(master, how="inner").restore(tide(master).snapshot())


def test_a_snapshot_that_does_not_fit_is_refused(master: MasterData, monkeypatch: pytest.MonkeyPatch):
    large = tide(master, 3_000_000)
    large.offer(batch(np.random.default_rng(1).permutation(ROWS)[: large.room()]))
    large.step()
    push: Any = WaitingRoom.push

    def push_what_fits(room: WaitingRoom, codes: Any, regions: Any, rows: Any, at: Any) -> Any:
        assert room.fits_anew(regions, int(at[-1]))
        return push(room, codes, regions, rows, at)

    monkeypatch.setattr(WaitingRoom, "push", push_what_fits)
    with pytest.raises(BudgetError):
        tide(master, least_bytes(master)).restore(large.snapshot())


def test_a_row_too_long_to_wait_is_refused_not_tried_for_ever(master: MasterData):
    """A list of booleans takes a bit each in Arrow, and eight bytes each as a row that waits."""
    schema = pa.schema([("key", pa.int64()), ("flags", pa.list_(pa.bool_()))])
    join = make_join("tide", master, schema, stream_key="key", budget=MemoryBudget(400_000))
    rows = pa.RecordBatch.from_pylist([{"key": 7, "flags": [True] * 100_000}], schema=schema)
    try:
        reports = finished(drive(join, [rows]), 100)
    except BudgetError:
        return
    assert sum(report.output_rows for report in reports) == 1


@pytest.mark.parametrize("long_rows", ["all", "some"])
def test_output_fits_its_reservation_however_wide_stream_rows_are(long_rows: str, tmp_path: Path):
    store = repeated(tmp_path, {key: 3 if key else 100 for key in range(300)})
    schema = pa.schema([("row", pa.int64()), ("key", pa.int64()), ("note", pa.string())])
    notes = ["w" * (4000 if long_rows == "all" or n % 20 == 0 else 1) for n in range(600)]
    rows = pa.RecordBatch.from_pydict(
        {"row": range(600), "key": [n % 20 and n * 7 % 300 for n in range(600)], "note": notes}, schema=schema
    )
    join = make_join("tide", store, schema, stream_key="key", budget=MemoryBudget(2_000_000))
    assert isinstance(join, TideJoin)
    for report in finished(drive(join, [rows] * 4)):
        assert sum(output.nbytes for output in report.outputs) <= join.sizes.output_bytes


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("total_bytes", [300_000, 1_000_000, 4_000_000])
def test_reads_of_narrow_rows_fit_the_disk_buffer(direct: bool, total_bytes: int, tmp_path: Path):
    """What is known of 400 rows of a page takes as much memory as the page itself."""
    table = pa.table({"id": np.arange(40_000), "n": np.zeros(40_000, dtype=np.int8)})
    MasterData.build(table, key="id", path=tmp_path, page_bytes=16_384)
    store = MasterData.open(tmp_path, direct=direct)
    join = tide(store, total_bytes)
    pages = np.arange(min(store.pages, join.sizes.pages_per_read))
    assert (1 + join.sizes.reads_ahead) * store.rows_buffer_bytes(pages) <= join.sizes.disk_buffer_bytes
    reports = finished(drive(join, [batch(np.random.default_rng(1).permutation(40_000))]))
    assert max(report.held_bytes["disk_buffer"] for report in reports) <= join.sizes.disk_buffer_bytes
