"""Lists, structs and maps become one binary value a row, and come back."""

from typing import Any

import pyarrow as pa
import pytest

from tidemill.master.nested import children_schema, pack_nested, unpack_nested
from tidemill.master.rows import RowLayout

POINT = pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))])
VALUES: dict[pa.DataType, list[Any]] = {
    pa.list_(pa.int64()): [[1, None, 3], [], None, [2**60]],
    pa.large_list(pa.string()): [["a", None, "bcd" * 20], [], None, [""]],
    pa.list_(pa.bool_(), 3): [[True, None, False], None, [False] * 3],
    pa.list_(pa.binary(5), 0): [[], None, []],
    pa.list_(pa.null()): [[None, None], None, []],
    pa.list_view(pa.decimal256(70, 2)): [[1, None], None, []],
    POINT: [{"x": None, "tags": []}, None, {"x": 3, "tags": None}, {"x": 4, "tags": ["a", None, ""]}],
    pa.struct([]): [{}, None, {}],
    pa.list_(pa.struct([])): [[{}, None], [], None],
    pa.map_(pa.string(), pa.list_(pa.float64())): [[("a", [1.5]), ("b", None)], [], None],
    pa.list_(pa.list_(pa.list_(POINT), 2)): [[[[{"x": 1, "tags": ["q"]}], None], None], [], None],
    pa.struct([("m", pa.map_(pa.int8(), POINT)), ("n", pa.null())]): [
        {"m": [(1, None), (2, {"x": 1})]},
        None,
    ],
}


def packed(column: "pa.Array[Any]") -> "pa.Array[Any]":
    values = pack_nested(column, RowLayout.of(children_schema(column.type)))
    values.validate(full=True)
    return values


def unpacked(values: "pa.Array[Any]", kind: pa.DataType) -> "pa.Array[Any]":
    column = unpack_nested(values.cast(pa.binary()), kind, RowLayout.of(children_schema(kind)))
    column.validate(full=True)
    return column


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_values_come_back(kind: pa.DataType):
    column = pa.array(VALUES[kind] * 3, kind)
    for part in (column, column.slice(1), column.slice(2, 3), column.slice(0, 0), pa.nulls(3, kind)):
        assert unpacked(packed(part), kind).equals(part)


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_packed_values_may_be_shuffled_and_cut(kind: pa.DataType):
    column = pa.array(VALUES[kind], kind)
    values = packed(column)
    assert values.is_null().equals(column.is_null())
    order = list(range(len(column)))[::-1] * 2
    shuffled = unpacked(values.take(pa.array(order)).slice(1), kind)
    assert shuffled.to_pylist() == [column[n].as_py() for n in order[1:]]


def test_a_struct_is_a_row_and_a_list_its_items_one_after_the_other():
    names = RowLayout.of(pa.schema([("0", pa.string())]))
    rows, at = names.encode(pa.RecordBatch.from_pydict({"0": ["Ada", None, "Bo"]}))
    whole = rows.tobytes()
    people = packed(pa.array([["Ada", None], [], ["Bo"]]))
    assert people.to_pylist() == [whole[: at[2]], b"", whole[at[2] :]]
    single = packed(pa.array([{"name": "Ada"}, {"name": None}]))
    assert single.to_pylist() == [whole[: at[1]], whole[at[1] : at[2]]]


def test_items_under_a_null_take_no_room_in_a_row():
    shown = pa.ListArray.from_arrays([0, 0, 1], pa.array([7]), mask=pa.array([True, False]))
    hidden = pa.ListArray.from_arrays([0, 2, 3], pa.array([5, 6, 7]), mask=pa.array([True, False]))
    layout = RowLayout.of(pa.schema([("v", hidden.type)]))
    encoded = [layout.encode(pa.RecordBatch.from_arrays([c], ["v"]))[0].tobytes() for c in (shown, hidden)]
    assert encoded[0] == encoded[1]
