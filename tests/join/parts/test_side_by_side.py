"""Output in one call is what Arrow puts together column by column, for any rows."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.recycled import Recycled
from tidemill.join.output import OutputPlan
from tidemill.join.parts.side_by_side import SideBySide
from tidemill.master.rows import RowLayout
from tidemill.master.survey import Survey

STREAM = pa.schema([("key", pa.int64()), ("pieces", pa.int32()), ("price", pa.float64())])
MASTER = pa.schema(
    [
        pa.field("key", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("sold", pa.bool_()),
        ("size", pa.int32()),
        ("note", pa.binary()),
        ("weight", pa.float32()),
        ("cost", pa.float64()),
        ("number", pa.string()),
    ]
)
COLUMNS = ["note", "sold", "weight", "number", "name", "cost", "size"]


def plan_of(**facts: Any) -> OutputPlan:
    told = {"stream_key": "key", "master_key": "key", "how": "left", "columns": COLUMNS} | facts
    return OutputPlan.of(STREAM, MASTER, **told)


def stream_rows(rows: int) -> pa.RecordBatch:
    numbers = np.arange(rows)
    columns = [pa.array(numbers * 3), pa.array(numbers.astype(np.int32)), pa.array(numbers / 7)]
    return pa.RecordBatch.from_arrays(columns, schema=STREAM)


_texts = st.sampled_from(["", "a", "a name of some length", "é" * 40])
_master_row = st.tuples(
    st.one_of(st.none(), _texts),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), st.integers(-100, 70_000)),
    st.one_of(st.none(), st.binary(max_size=70)),
    st.one_of(st.none(), st.floats(width=32, allow_nan=False)),
    st.one_of(st.none(), st.integers(-(10**6), 10**6).map(lambda cents: cents / 100)),
    st.one_of(st.none(), st.integers(0, 10**18).map(lambda number: f"number {number:019d}.")),
)


FULL = ("a", True, 1, b"x", 0.5, 0.25, f"number {7:019d}.")


def master_rows(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [list(range(len(rows))), *(list(column) for column in zip(*rows, strict=True))]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, MASTER, strict=True)], schema=MASTER
    )


@given(
    rows=st.lists(_master_row, min_size=1, max_size=30),
    picked=st.lists(st.integers(-1, 29), min_size=1, max_size=300),
    is_packed=st.booleans(),
    is_full=st.booleans(),
    begin=st.integers(0, 5),
    matched_as=st.sampled_from([None, "met"]),
)
def test_the_same_batch_as_column_by_column(
    rows: list[tuple[Any, ...]],
    picked: list[int],
    is_packed: bool,
    is_full: bool,
    begin: int,
    matched_as: str | None,
) -> None:
    if is_full:  # packed, such rows have no bits
        rows = [
            tuple(other if value is None else value for value, other in zip(row, FULL, strict=True))
            for row in rows
        ]
    master = master_rows(rows)
    survey = Survey(MASTER, "key")
    survey.add(master)
    layout = RowLayout.of(MASTER, first="key", packing=survey.packing(wanted=is_packed))
    encoded, at = layout.encode(master)
    wanted = np.array([number % len(rows) if number >= 0 else -1 for number in picked])
    places = np.append(at[:-1], -1)[wanted]
    plan, memory = plan_of(matched_as=matched_as), Recycled(10**6)
    stream_layout = RowLayout.of(STREAM)
    stream = stream_rows(begin + 2 * len(picked)).slice(begin)
    numbers = np.arange(0, 2 * len(picked), 2)
    expected = plan.assemble(stream.take(numbers), layout.decode(encoded, places, COLUMNS), places >= 0)
    beside = SideBySide(plan, layout, stream_layout)
    sources = beside.sources(stream)
    assert sources is not None
    rows_bytes = int(np.diff(at)[wanted[wanted >= 0]].sum())
    stream_encoded, stream_at = stream_layout.encode(stream)
    for found in (
        beside.of_batch(sources, numbers, encoded, places, rows_bytes, memory),
        beside.of_rows(stream_encoded, stream_at[numbers], encoded, places, rows_bytes, memory),
    ):
        found.validate(full=True)
        assert found.equals(expected)


def test_stream_rows_that_waited_may_hold_nulls() -> None:
    stream = pa.RecordBatch.from_pylist(
        [{"key": 1, "pieces": None, "price": 0.5}, {"key": None, "pieces": 2, "price": None}], schema=STREAM
    )
    master = master_rows([("a", True, 1, b"x", 0.5, 0.25, "number 1.")])
    layout, stream_layout = RowLayout.of(MASTER, first="key"), RowLayout.of(STREAM)
    rows, at = layout.encode(master)
    stream_encoded, stream_at = stream_layout.encode(stream)
    beside = SideBySide(plan_of(), layout, stream_layout)
    assert beside.sources(stream) is None, "columns with NULLs are not copied value by value"
    places = np.array([int(at[0]), -1])
    found = beside.of_rows(stream_encoded, stream_at[:-1], rows, places, len(rows), Recycled(10**6))
    found.validate(full=True)
    expected = plan_of().assemble(stream, layout.decode(rows, places, COLUMNS), None)
    assert found.equals(expected)


@pytest.mark.parametrize(
    ("stream", "facts"),
    [
        (STREAM, {"how": "semi", "columns": None}),
        (pa.schema([*STREAM, ("comment", pa.string())]), {}),
        (pa.schema([*STREAM, ("is_gift", pa.bool_())]), {}),
    ],
)
def test_where_it_is_not_able(stream: pa.Schema, facts: dict[str, Any]) -> None:
    told = {"stream_key": "key", "master_key": "key", "how": "left", "columns": COLUMNS} | facts
    plan = OutputPlan.of(stream, MASTER, **told)
    assert not SideBySide(plan, RowLayout.of(MASTER, first="key"), RowLayout.of(stream)).is_able


def test_columns_that_leave_in_another_type_than_they_are_stored_in() -> None:
    master = pa.schema([*MASTER, ("colour", pa.dictionary(pa.int32(), pa.string()))])
    plan = OutputPlan.of(STREAM, master, stream_key="key", master_key="key", how="left", columns=["colour"])
    assert not SideBySide(plan, RowLayout.of(master, first="key"), RowLayout.of(STREAM)).is_able
