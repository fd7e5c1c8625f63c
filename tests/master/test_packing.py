"""Packed columns: fewer bytes, the same values, whatever changes bring."""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import SpecError, StoreError
from tidemill.core.files import read_sealed, write_sealed
from tidemill.master import MasterData, page_writer, survey
from tidemill.master.feeds_difference import ReRead, folder_beside
from tidemill.master.frame_survey import FrameSurvey
from tidemill.master.layout import MANIFEST_FILE, version_folder
from tidemill.master.packing import PACKED_FILE, Coded, Digits, Framed, Narrow, Packing
from tidemill.master.rows import RowLayout
from tidemill.master.survey import Survey

COLOURS = ["red", "green", "", None, "a colour with a rather long name"]


def table(rows: int = 3000) -> pa.Table:
    numbers = np.arange(rows)
    return pa.table(
        {
            "id": numbers,
            "stock": pa.array([None if n % 7 == 0 else n * 1000 - 500_000 for n in range(rows)], pa.int64()),
            "shelf": (numbers % 300).astype(np.int32),
            "listed_on": pa.array([dt.date(2015, 1, 1) + dt.timedelta(days=n % 4000) for n in range(rows)]),
            "colour": [COLOURS[n % len(COLOURS)] for n in range(rows)],
            "name": [f"article {n}" for n in range(rows)],
            "number": pa.array(
                [None if n % 11 == 0 else f"no. {n:06d} of the season" for n in range(rows)], pa.string()
            ),
            "mark": pa.array([None if n % 5 == 0 else f"[{n:04x}]" for n in range(rows)], pa.string()),
            "price": pa.array(
                [None if n % 13 == 0 else (7 * n - 900) / 100 for n in range(rows)], pa.float64()
            ),
        }
    )


def rows_of(master: MasterData) -> list[dict[str, Any]]:
    return [row for batch in master.scan() for row in batch.to_pylist()]


@pytest.fixture
def master(tmp_path: Path) -> MasterData:
    return MasterData.build(table(), key="id", path=tmp_path / "store", page_bytes=4096, pack=True)


def test_the_rows_are_the_same_in_fewer_bytes(master: MasterData, tmp_path: Path) -> None:
    plain = MasterData.build(table(), key="id", path=tmp_path / "plain", page_bytes=4096, pack=False)
    digits, frame = master.packing.columns["number"], master.packing.columns["mark"]
    assert isinstance(digits, Digits)
    assert digits.frame == Framed(6, b"no. ", b" of the season")
    assert frame == Framed(4, b"[", b"]")
    assert master.packing.form == {
        "id": "narrow 4",
        "stock": "narrow 3",
        "shelf": "narrow 2",
        "listed_on": "narrow 2",
        "price": "scaled 2 of 2",
        "colour": "coded 1",
        "name": "coded 2",
        "number": f"digits 3 as {digits.frame.form}",
        "mark": frame.form,
    }
    assert rows_of(master) == rows_of(plain) == table().to_pylist()
    assert master.pages < 0.6 * plain.pages
    assert master.stored_row_bytes < 0.6 * plain.stored_row_bytes
    assert master.row_bytes == plain.row_bytes


_NUMBERS = {
    kind: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for kind, bits in ((pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64), (pa.timestamp("us"), 64))
}


@given(data=st.data())
def test_a_packed_row_is_read_as_it_was_written(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 40))
    first = data.draw(st.integers(-(2**31), 2**30) | st.integers(-(2**63), 2**62))
    columns: dict[str, Any] = {"id": pa.array(range(first, first + rows), pa.int64())}
    nothing = st.none() if data.draw(st.booleans()) else st.nothing()
    for kind, numbers in _NUMBERS.items():
        limit = data.draw(numbers)
        some = nothing | st.integers(min(0, limit), max(0, limit))
        drawn = data.draw(st.lists(some, min_size=rows, max_size=rows))
        columns[str(kind)] = pa.array(drawn, pa.int64()).cast(kind, safe=False)
    words = st.lists(nothing | st.binary(max_size=60), min_size=rows, max_size=rows)
    columns["words"] = pa.array(data.draw(words), pa.binary())
    begins, ends = data.draw(st.binary(max_size=70)), data.draw(st.binary(max_size=70))
    size = data.draw(st.integers(1, 40))
    middles = data.draw(
        st.lists(nothing | st.binary(min_size=size, max_size=size), min_size=rows, max_size=rows)
    )
    framed = [None if middle is None else begins + middle + ends for middle in middles]
    columns["framed"] = pa.array(framed, pa.binary())
    batch = pa.record_batch(columns)
    seen = Survey(batch.schema, "id")
    seen.add(batch.slice(0, rows // 2))
    seen.add(batch.slice(rows // 2))
    packing = seen.packing(wanted=True)
    frame = seen.frame_of("framed")
    if data.draw(st.booleans()) and frame is not None:  # rather than a dictionary
        packing = Packing({**packing.columns, "framed": frame}, packing.has_nulls)
    layout = RowLayout.of(batch.schema, first="id", packing=packing)
    encoded, at = layout.encode(batch)
    wanted = np.array(data.draw(st.lists(st.integers(-1, rows - 1), max_size=50)), dtype=np.int64)
    decoded = layout.decode(encoded, np.where(wanted < 0, -1, at[wanted]))
    decoded.validate(full=True)
    # Column by column: Python has no year for some of these times.
    expected = batch.take(pa.array(wanted, mask=wanted < 0))
    assert decoded.columns == expected.columns
    sizes = layout.sizes(encoded, at[:-1]) + layout.grows_bytes
    assert layout.decode(encoded, at[:-1]).nbytes <= int(sizes.sum()) + 64 * len(columns)


@pytest.mark.parametrize(
    ("low", "high", "width"), [(0, 99, 1), (0, 110, 2), (-100, 0, 1), (-120, 0, 2), (0, 2**62, None)]
)
def test_numbers_get_room_for_a_quarter_more(low: int, high: int, width: int | None) -> None:
    found = Narrow.for_range(low, high, of_bytes=8)
    assert (found.width if found else None) == width


def test_new_values_lengthen_the_dictionary_and_leave_rows_as_they_are(master: MasterData) -> None:
    change = {**table(1).to_pylist()[0], "id": 17, "colour": "violet", "_op": "update"}
    changed = master.apply(pa.Table.from_pylist([change], schema=_with_operation()))
    assert changed.version == master.version + 1
    assert changed.packing.form == master.packing.form
    expected = table().to_pylist()
    assert rows_of(master) == expected
    del change["_op"]
    assert rows_of(changed) == [*expected[:17], change, *expected[18:]]
    again = MasterData.open(master.path)
    assert rows_of(again) == rows_of(changed)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("stock", [2**40]),
        ("shelf", [-(2**31)]),
        ("colour", [f"colour {n}" for n in range(200)]),
        ("colour", ["x" * 300]),
        ("number", ["no. 1234567 of the season"]),
        ("number", ["no. 123456 of the winter"]),
        ("number", ["No. 123456 of the season"]),
        ("number", [""]),
        ("mark", ["[12345]"]),
        ("mark", ["(1234)"]),
        ("price", [0.125]),
        ("price", [400.0]),
        ("price", [float("inf")]),
        ("price", [1 / 3]),
    ],
)
def test_a_column_that_outgrows_its_packing_goes_back_to_its_own_width(
    master: MasterData, column: str, values: list[Any]
) -> None:
    old = table().to_pylist()
    changes = [{**old[n], column: value} for n, value in enumerate(values)]
    changed = master.apply(
        pa.Table.from_pylist([{**row, "_op": "update"} for row in changes], schema=_with_operation())
    )
    assert column not in changed.packing.form
    assert len(changed.packing.form) == len(master.packing.form) - 1
    assert rows_of(changed) == changes + old[len(changes) :]
    assert rows_of(master) == old
    codes = changed.changed_codes(since=master.version)
    assert codes is not None
    assert codes.tolist() == list(range(len(values)))


def _with_operation() -> pa.Schema:
    return table(1).schema.append(pa.field("_op", pa.string()))


def test_compaction_keeps_the_packing(master: MasterData) -> None:
    gone = pa.table({"id": range(0, 3000, 3), "_op": ["delete"] * 1000})
    compact = master.apply(gone).compact()
    assert compact.packing.form == master.packing.form
    assert compact.garbage_share == 0
    assert rows_of(compact) == [row for row in table().to_pylist() if row["id"] % 3]


def test_a_re_read_finds_what_differs_even_where_it_does_not_fit(master: MasterData) -> None:
    rows = table().to_pylist()
    rows[5]["colour"], rows[6]["stock"] = "violet", 2**40
    with folder_beside(master.path) as folder:
        changes = ReRead(master, pa.Table.from_pylist(rows, schema=table(1).schema), folder, 2**24).changes()
    assert changes.column("id").to_pylist() == [5, 6]
    assert rows_of(master.apply(changes)) == rows


def test_a_damaged_dictionary_is_named_before_any_row_is_read(master: MasterData) -> None:
    file = version_folder(master.path, master.version) / PACKED_FILE
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(StoreError, match=PACKED_FILE) as damaged:
        MasterData.open(master.path)
    assert damaged.value.code == "index_corrupt"
    file.unlink()
    with pytest.raises(StoreError, match=PACKED_FILE):
        MasterData.open(master.path)


def test_small_stores_stay_as_they_are(tmp_path: Path) -> None:
    assert MasterData.build(table(), key="id", path=tmp_path).packing.form == {}


def test_large_stores_are_packed_where_a_dictionary_saves_much(tmp_path: Path) -> None:
    rows = 700_000
    numbers = np.arange(rows)
    wide = pa.table(
        {
            "id": numbers,
            "maker": pa.array(
                np.array([f"maker number {n:06d} of all" for n in range(5000)])[numbers % 5000]
            ),
            "name": np.char.add(
                "a name that comes but once, and is long enough to weigh ", numbers.astype("U7")
            ),
            "stock": numbers % 4000,
        }
    )
    master = MasterData.build(wide, key="id", path=tmp_path)
    assert master.packing.form == {"id": "narrow 4", "maker": "coded 2", "stock": "narrow 2"}
    assert not master.packing.has_nulls
    assert master.read_page(master.pages - 1).to_pylist()[-1] == wide.slice(rows - 1).to_pylist()[0]


def test_a_history_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        MasterData.build(table(), key="id", path=tmp_path, history=("shelf", "stock"), pack=True)
    assert refused.value.code == "history_packed"


def test_stores_of_format_3_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_writer, "kind_for", lambda _: 0)
    old = MasterData.build(table(), key="id", path=tmp_path, pack=False)
    file = version_folder(old.path, old.version) / MANIFEST_FILE
    record = read_sealed(file)
    for name in ("packed", "has_nulls", "packed_file_bytes", "packed_file_crc", "stored_row_bytes"):
        del record[name]
    write_sealed(file, {**record, "format_version": 3})
    assert rows_of(MasterData.open(tmp_path)) == table().to_pylist()


def test_stores_of_format_4_tell_their_packing_in_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_writer, "kind_for", lambda _: 0)
    monkeypatch.setattr(survey, "SHORT_CODE_BYTES", 0)
    rows = table().drop_columns(["number", "mark", "price"])
    old = MasterData.build(rows, key="id", path=tmp_path, page_bytes=4096, pack=True)
    file = version_folder(old.path, old.version) / MANIFEST_FILE
    record = read_sealed(file)
    widths = {name: form.split() for name, form in record["packed"].items()}
    told = {name: -int(width) if kind == "coded" else int(width) for name, (kind, width) in widths.items()}
    write_sealed(file, {**record, "packed": told, "format_version": 4})
    again = MasterData.open(tmp_path)
    assert again.packing.form == old.packing.form
    assert rows_of(again) == rows.to_pylist()


@pytest.mark.parametrize(
    ("values", "frame"),
    [
        (["SKU-001", "SKU-002"], Framed(3, b"SKU-", b"")),
        (["1-x-1", "2-x-1"], Framed(1, b"", b"-x-1")),
        (["x1001", "x2001"], Framed(4, b"x", b"")),
        (["12:a:34", "12:b:34"], Framed(1, b"12:", b":34")),
        (["ab", "ab"], None),
        (["a", "bc"], None),
        (["", ""], None),
        ([None, None], None),
        (["x" * 257, "y" * 257], None),
    ],
)
def test_frames_leave_numbers_whole(values: list[str | None], frame: Framed | None) -> None:
    seen = FrameSurvey()
    for value in values:
        seen.add(pa.array([value], pa.string()))
    assert seen.framed() == frame


def test_a_number_that_names_no_value_reads_as_empty() -> None:
    """Whoever shares rows with another process may meet a torn one, and finds out only after it was read."""
    schema = pa.schema([("id", pa.int64()), ("colour", pa.string())])
    batch = pa.record_batch([pa.array([1, 2]), pa.array(["red", "red"])], schema=schema)
    seen = Survey(schema, "id")
    seen.add(batch)
    layout = RowLayout.of(schema, first="id", packing=seen.packing(wanted=True))
    assert isinstance(layout.slots[1].packed, Coded)
    rows, at = layout.encode(batch)
    rows[at[1] + layout.slots[1].offset] = 0x7F
    assert layout.decode(rows, at[:-1]).column("colour").to_pylist() == ["red", ""]
