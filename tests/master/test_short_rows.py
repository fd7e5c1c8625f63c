"""Short rows: codes of four bytes, and no bits where nothing is NULL, as long as changes let them."""

import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import StoreError
from tidemill.core.files import read_sealed, write_sealed
from tidemill.lab.master_rows import master_reader
from tidemill.master import MasterData, layout, survey
from tidemill.master.feeds_difference import ReRead, folder_beside
from tidemill.master.layout import FORMAT_VERSION, MANIFEST_FILE, version_folder
from tidemill.master.packing import Digits, Framed, Narrow, Packing
from tidemill.master.page_kernels import DENSE, LINED, SHORT
from tidemill.master.rows import RowLayout
from tidemill.master.short_numbers import DoesNotFitError
from tidemill.master.survey import Survey

ROWS = 3_000
FIRST = -ROWS // 2


def table(rows: int = ROWS, first: int = FIRST) -> pa.Table:
    numbers = np.arange(rows)
    return pa.table(
        {
            "id": first + numbers,
            "stock": numbers * 1000 - 500_000,
            "name": [f"no. {n:06d}" for n in range(rows)],
        }
    )


def rows_of(master: MasterData) -> list[dict[str, Any]]:
    return [row for batch in master.scan() for row in batch.to_pylist()]


def kinds_of(master: MasterData) -> set[int]:
    """Of all pages that a version uses."""
    files = [np.fromfile(master.path / file.name, dtype=np.uint64) for file in master.manifest.files]
    heads = zip(master.index.file.tolist(), master.index.offset.tolist(), strict=True)
    return {int(files[file][offset * 512 + 1]) >> 32 & 7 for file, offset in heads}


def is_short(master: MasterData) -> bool:
    """Whether codes have four bytes, as layout and pages both say."""
    kinds = {bool(kind & SHORT) for kind in kinds_of(master)}
    assert kinds == {master.layout.code_bytes == 4}
    assert kinds == {master.packing.form.get("id") == "narrow 4"}
    return kinds == {True}


@pytest.fixture
def master(tmp_path: Path) -> MasterData:
    return MasterData.build(table(), key="id", path=tmp_path / "store", page_bytes=4096, pack=True)


def changed(master: MasterData, *rows: dict[str, Any]) -> MasterData:
    schema = table(1).schema.append(pa.field("_op", pa.string()))
    return master.apply(pa.Table.from_pylist([{"_op": "update", **row} for row in rows], schema=schema))


def test_a_short_row_is_laid_out_as_documented(master: MasterData) -> None:
    assert kinds_of(master) == {LINED | DENSE | SHORT}
    assert not master.packing.has_nulls
    assert not master.manifest.has_nulls
    # The code, three bytes of a number, three of six digits: ten, and no bits.
    assert (master.layout.fixed_bytes, master.layout.least_row_bytes, master.stored_row_bytes) == (10, 16, 16)
    (file,) = master.manifest.files
    page = (master.path / file.name).read_bytes()[:4096]
    rows, used = struct.unpack_from("<II", page, 8)
    assert used - (LINED | DENSE | SHORT) == 16 + rows * 16
    codes = [struct.unpack_from("<i", page, 16 + 16 * n)[0] for n in range(rows)]
    assert codes == list(range(FIRST, FIRST + rows))
    assert page[16 + 10 : 32] == bytes(6)


def test_all_rows_are_found_by_whatever_reads_them(master: MasterData) -> None:
    assert rows_of(master) == table().to_pylist()
    assert master.schema.field("id").type == pa.int64()
    codes = master.read_rows(0, master.pages).codes
    assert codes.tolist() == list(range(FIRST, FIRST + ROWS))
    some = [FIRST, -1, 0, 17, FIRST + ROWS - 1, FIRST - 1, FIRST + ROWS, 2**32 - 1, 2**40]
    number, found = master.lookup(pa.array(some))
    assert number.tolist() == [0, 1, 2, 3, 4]
    assert found.column("id").to_pylist() == some[:5]
    again = MasterData.open(master.path)
    assert rows_of(again) == rows_of(master)
    assert again.packing.lies_as(master.packing)


def test_rows_of_the_join_benchmark_take_24_bytes(tmp_path: Path) -> None:
    rows = pa.Table.from_batches(master_reader(50_000))
    short = MasterData.build(rows, key=rows.schema.names[0], path=tmp_path, pack=True)
    assert short.stored_row_bytes == 24
    assert (
        pa.Table.from_batches(short.scan())
        .replace_schema_metadata(None)
        .equals(rows.sort_by(rows.schema.names[0]))
    )


@pytest.mark.parametrize("order_by", [None, "stock"])
@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.uint32(), pa.int64()], ids=str)
def test_keys_of_every_whole_type(tmp_path: Path, kind: pa.DataType, order_by: str | None) -> None:
    rows = table(200, 100 if kind == pa.uint32() else -100)
    rows = rows.set_column(0, "id", rows.column("id").cast(kind))
    short = MasterData.build(rows, key="id", path=tmp_path, pack=True, order_by=order_by)
    assert is_short(short)
    assert sorted(row["id"] for row in rows_of(short)) == rows.column("id").to_pylist()
    assert short.lookup(rows.column("id"))[1].column("stock").to_pylist() == rows.column("stock").to_pylist()


def test_hashed_and_composite_keys_keep_their_eight_bytes(tmp_path: Path) -> None:
    for number, key in enumerate((["name"], ["id", "name"])):
        long = MasterData.build(table(), key=key, path=tmp_path / str(number), pack=True)
        assert long.layout.code_bytes == 8
        assert kinds_of(long) == {LINED | DENSE}
        assert not long.packing.has_nulls
        assert sorted(map(str, rows_of(long))) == sorted(map(str, _with_code(long)))


def _with_code(master: MasterData) -> list[dict[str, Any]]:
    rows = table().to_pylist()
    codes = {(row["id"], row["name"]): row["_code"] for row in rows_of(master)}
    return [{**row, "_code": codes[row["id"], row["name"]]} for row in rows]


@pytest.mark.parametrize(
    ("low", "high", "is_held"),
    [
        (-1_717_986_918, 0, True),
        (0, 1_717_986_918, True),
        (0, 2**31 - 1, False),
        (-(2**31), 0, False),
        (0, 1_717_986_919, False),
        (-1_717_986_919, 0, False),
        (-(2**63), 2**63 - 1, False),
    ],
)
def test_codes_are_short_where_a_quarter_more_would_be(low: int, high: int, is_held: bool) -> None:
    batch = pa.record_batch({"id": pa.array([low, 0, high], pa.int64()), "n": [1, 2, 3]})
    found = Survey(batch.schema, "id")
    found.add(batch)
    packing = found.packing(wanted=True)
    assert packing.columns.get("id") == (Narrow(4) if is_held else None)
    lies = RowLayout.of(batch.schema, first="id", packing=packing)
    assert lies.code_bytes == (4 if is_held else 8)
    rows, at = lies.encode(batch)
    assert lies.decode(rows, at[:-1]).column("id").to_pylist() == [low, 0, high]


@given(data=st.data())
def test_short_codes_beside_columns_of_any_width(data: st.DataObject) -> None:
    """A column that ends within the first eight bytes of a row is read from there on, any other up to its end."""
    rows, chance = data.draw(st.integers(1, 20)), np.random.default_rng(data.draw(st.integers(0, 2**32)))
    codes = chance.integers(-(2**31), 2**31, rows)
    codes[0] = data.draw(st.sampled_from([-(2**31), -1, 0, 2**31 - 1]))
    columns: dict[str, Any] = {"id": pa.array(codes)}
    packed = {"id": Narrow(4)}
    for number, width in enumerate(data.draw(st.lists(st.integers(1, 7), max_size=4))):
        limit = 2 ** (8 * width - 1)
        columns[f"n{number}"] = pa.array(chance.integers(-limit, limit, rows))
        packed[f"n{number}"] = Narrow(width)
    if data.draw(st.booleans()):
        columns["text"] = pa.array(["x" * int(size) for size in chance.integers(0, 50, rows)])
    batch = pa.record_batch(columns)
    lies = RowLayout.of(batch.schema, first="id", packing=Packing(packed, has_nulls=data.draw(st.booleans())))
    encoded, at = lies.encode(batch)
    assert (lies.sizes(encoded, at[:-1]) == np.diff(at)).all()
    wanted = chance.integers(-1, rows, data.draw(st.integers(0, 30)))
    decoded = lies.decode(encoded, np.where(wanted < 0, -1, at[wanted]))
    decoded.validate(full=True)
    assert decoded.columns == batch.take(pa.array(wanted, mask=wanted < 0)).columns
    # With absent rows columns have bits, which the rows may not have had.
    grown = len(wanted) * lies.grows_bytes + int(np.diff(at)[wanted[wanted >= 0]].sum())
    assert decoded.nbytes <= grown + lies.fixed_bytes * int((wanted < 0).sum()) + 64 * len(columns)


@pytest.mark.parametrize(
    "how", [Framed(2, b"<", b">"), Digits(Framed(2, b"<", b">"))], ids=lambda how: how.form[:6]
)
def test_absent_rows_have_no_values_in_a_frame(how: Framed | Digits) -> None:
    """Without bits nothing but its place tells that a row is absent; what lies under a NULL no comparison shows."""
    batch = pa.record_batch({"id": pa.array([1, 2]), "text": ["<12>", "<34>"]})
    lies = RowLayout.of(
        batch.schema, first="id", packing=Packing({"id": Narrow(4), "text": how}, has_nulls=False)
    )
    rows, at = lies.encode(batch)
    found = lies.decode(rows, np.array([at[1], -1, at[0], -1])).column("text")
    assert found.to_pylist() == ["<34>", None, "<12>", None]
    assert np.frombuffer(found.buffers()[1], np.int32)[:5].tolist() == [0, 4, 4, 8, 8]


def test_bits_that_columns_have_and_rows_have_not_are_counted() -> None:
    """Rows of 32 bytes to the last one: there is no padding in which bits could hide."""
    columns = {f"n{n}": pa.array(np.arange(800) % 100, pa.int8()) for n in range(28)}
    batch = pa.record_batch({"id": pa.array(np.arange(800)), **columns})
    lies = RowLayout.of(batch.schema, first="id", packing=Packing({"id": Narrow(4)}, has_nulls=False))
    assert lies.fixed_bytes == lies.least_row_bytes == 32
    rows, at = lies.encode(batch)
    found = lies.decode(rows, np.append(at[:-2], -1))
    assert found.column("n0").null_count == 1
    assert found.nbytes <= 800 * (lies.least_row_bytes + lies.grows_bytes)


def test_nothing_outside_a_row_is_read() -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("child_row_edges.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != -signal.SIGSEGV, "a byte before or behind the rows was read"
    assert done.stdout == "whole\n", done.stderr


@pytest.mark.parametrize("key", [2**31, -(2**31) - 1, 2**40, -(2**63), 2**63 - 1])
def test_a_key_beyond_four_bytes_gives_all_rows_eight(master: MasterData, key: int) -> None:
    new = {"id": key, "stock": 3, "name": "no. 777777"}
    longer = changed(master, new)
    assert not is_short(longer)
    assert not longer.packing.has_nulls, "nothing else changed"
    assert rows_of(longer) == sorted([*table().to_pylist(), new], key=lambda row: row["id"])
    assert longer.lookup(pa.array([key, -1, 5]))[1].column("id").to_pylist() == [key, -1, 5]
    assert is_short(master)
    assert rows_of(master) == table().to_pylist()
    codes = longer.changed_codes(since=master.version)
    assert codes is not None
    assert codes.tolist() == [key]
    assert kinds_of(longer.compact()) == {LINED | DENSE}


def test_the_last_keys_of_four_bytes_leave_rows_as_they_are(master: MasterData) -> None:
    news = [{"id": key, "stock": 3, "name": "no. 777777"} for key in (-(2**31), 2**31 - 1)]
    same = changed(master, *news)
    assert is_short(same)
    assert same.version == master.version + 1, "nothing was written anew"
    assert rows_of(same) == [news[0], *table().to_pylist(), news[1]]
    whole = same.compact()
    assert rows_of(whole) == rows_of(same)
    assert is_short(whole)


def test_a_key_beyond_that_is_only_deleted_leaves_rows_as_they_are(master: MasterData) -> None:
    same = master.apply(pa.table({"id": [2**40, -1], "_op": ["delete", "delete"]}))
    assert is_short(same)
    assert rows_of(same) == [row for row in table().to_pylist() if row["id"] != -1]


@pytest.mark.parametrize("column", ["stock", "name"])
def test_a_first_null_gives_all_rows_their_bits(master: MasterData, column: str) -> None:
    new = {"id": 4, "stock": 3, "name": "no. 777777", column: None}
    with_bits = changed(master, new)
    assert with_bits.packing.has_nulls
    assert with_bits.manifest.has_nulls
    assert is_short(with_bits)
    assert with_bits.packing.form == master.packing.form
    assert with_bits.layout.fixed_bytes == master.layout.fixed_bytes + 1
    expected = table().to_pylist()
    expected[4 - FIRST] = new
    assert rows_of(with_bits) == expected
    assert rows_of(MasterData.open(master.path)) == expected
    assert rows_of(master) == table().to_pylist()
    # Once more a NULL: there are bits for it.
    assert changed(with_bits, {**new, "id": 5}).version == with_bits.version + 1


def test_a_first_null_and_a_key_beyond_at_once(master: MasterData) -> None:
    new = {"id": 2**33, "stock": None, "name": None}
    longer = changed(master, new)
    assert not is_short(longer)
    assert longer.packing.has_nulls
    assert rows_of(longer) == [*table().to_pylist(), new]


def test_only_whoever_asks_for_it_loses_a_null() -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    lies = RowLayout.of(schema, first="id", packing=Packing({"id": Narrow(4)}, has_nulls=False))
    with pytest.raises(DoesNotFitError):
        lies.encode(pa.record_batch([pa.array([1, 2]), pa.array([None, 2])], schema=schema))
    with pytest.raises(DoesNotFitError):
        lies.encode(pa.record_batch([pa.array([1, 2**31]), pa.array([1, 2])], schema=schema))


@pytest.mark.parametrize(
    "hidden",
    [
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", None])),
        pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array(["a", None])),
        pa.nulls(3),
        pa.array([[1], None, [2]]),
    ],
    ids=lambda column: str(column.type)[:12],
)
def test_a_null_is_seen_wherever_it_hides(hidden: "pa.Array[Any]", tmp_path: Path) -> None:
    batch = pa.record_batch({"id": pa.array([1, 2, 3]), "hidden": hidden})
    found = Survey(batch.schema, "id")
    found.add(batch)
    assert found.packing(wanted=True).has_nulls
    plain = MasterData.build(pa.Table.from_batches([batch]), key="id", path=tmp_path, pack=True)
    assert [row["hidden"] for row in rows_of(plain)] == hidden.to_pylist()


def test_a_re_read_of_short_rows_finds_what_differs(master: MasterData) -> None:
    rows = table().to_pylist()
    rows[5]["stock"], rows[6]["name"] = None, "another"
    rows.append({"id": 2**50, "stock": 1, "name": "no. 000001"})
    with folder_beside(master.path) as folder:
        changes = ReRead(master, pa.Table.from_pylist(rows, schema=table(1).schema), folder, 2**24).changes()
    assert changes.column("id").to_pylist() == [FIRST + 5, FIRST + 6, 2**50]
    longer = master.apply(changes)
    assert rows_of(longer) == rows
    assert not is_short(longer)


def test_a_store_of_format_6_is_read_and_keeps_its_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(survey, "SHORT_CODE_BYTES", 0)
        patch.setattr(survey, "nulls_in", lambda _: 1)
        MasterData.build(table(), key="id", path=tmp_path, page_bytes=4096, pack=True)
    for file in (version_folder(tmp_path, 1) / MANIFEST_FILE, tmp_path / "CURRENT"):
        record = {**read_sealed(file), "format_version": 6}
        record.pop("has_nulls", None)
        write_sealed(file, record)
    old = MasterData.open(tmp_path)
    assert old.manifest.format_version == 6
    assert old.packing.has_nulls
    assert not is_short(old)
    assert rows_of(old) == table().to_pylist()
    new = changed(old, {"id": 4, "stock": None, "name": "no. 777777"})
    assert new.version == old.version + 1
    assert new.manifest.format_version == FORMAT_VERSION
    assert not is_short(new.compact())
    monkeypatch.setattr(layout, "READABLE_FORMATS", (3, 4, 5, 6))
    with pytest.raises(StoreError, match="has format version 7") as refusal:
        MasterData.open(tmp_path)
    assert refusal.value.code == "format_version"
