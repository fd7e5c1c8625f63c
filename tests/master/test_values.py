"""Values of every Arrow type come back as they were, NULLs and nested ones too."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidemill.core.errors import SpecError
from tidemill.master import MasterData

DAY = dt.date(2024, 2, 29)
POINT = pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))])
VALUES: dict[pa.DataType, list[Any]] = {
    pa.null(): [None, None],
    pa.bool_(): [True, False],
    pa.float16(): [1.5, -2.0],
    pa.float64(): [float("inf"), -0.0],
    pa.uint64(): [2**64 - 1, 0],
    pa.string(): ["", "Größe"],
    pa.large_binary(): [b"\0", b""],
    pa.binary(3): [b"abc", b"def"],
    pa.decimal256(70, 5): [Decimal("1.5"), Decimal(-2)],
    pa.date64(): [DAY, DAY],
    pa.time64("us"): [dt.time(1, 2, 3), dt.time(0)],
    pa.timestamp("us", "Europe/Berlin"): [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)] * 2,
    pa.duration("ms"): [dt.timedelta(seconds=1), dt.timedelta(0)],
    pa.month_day_nano_interval(): [pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([0, 0, 0])],
    pa.list_(pa.int64()): [[1, None], []],
    pa.list_(pa.int8(), 2): [[1, 2], [3, None]],
    pa.large_list(POINT): [[{"x": 1, "tags": ["a", None]}, None], []],
    POINT: [{"x": None, "tags": []}, {"x": 3, "tags": None}],
    pa.map_(pa.string(), pa.list_(pa.int32())): [[("a", [1]), ("b", None)], []],
    pa.string_view(): ["short", "longer than twelve bytes"],
    pa.dictionary(pa.int8(), pa.string()): ["red", "blue"],
    pa.list_(pa.dictionary(pa.int8(), pa.string())): [["red", None], []],
    pa.struct([("v", pa.string_view())]): [{"v": "a"}, {"v": None}],
    pa.run_end_encoded(pa.int32(), pa.string()): ["a", "a"],
}


@pytest.mark.parametrize("memory", ["2 kB", "10 MB"])
@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_values_come_back(tmp_path: Path, kind: pa.DataType, memory: str):
    values = [None, *VALUES[kind], None, *VALUES[kind]] * 60
    column = pa.array(values, kind)
    table = pa.table({"id": pa.array(range(len(values), 0, -1)), "v": column})
    master = MasterData.build(table, key="id", path=tmp_path, page_bytes=4096, memory=memory)
    back = pa.Table.from_batches(master.read_pages(range(master.pages)))
    back.validate(full=True)
    assert back.column("v").to_pylist() == column.to_pylist()[::-1]


def test_a_type_that_no_page_can_hold_is_refused_by_name(tmp_path: Path):
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(SpecError, match=r"column 'v' has type .*union") as refusal:
        MasterData.build(pa.table({"id": [1], "v": union}), key="id", path=tmp_path)
    assert refusal.value.column == "v"
