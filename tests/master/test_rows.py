"""Rows give back what was put into them: every Arrow type, any order, absent rows, some of the columns."""

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import SpecError
from tidemill.master.rows import RowLayout

FLAT = [
    pa.null(), pa.bool_(), pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(),
    pa.float64(), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("us", "Europe/Berlin"),
    pa.duration("ms"), pa.month_day_nano_interval(), pa.decimal32(5, 1), pa.decimal64(12, 2), pa.decimal128(30, 3),
    pa.decimal256(70, 5), pa.binary(0), pa.binary(1), pa.binary(3), pa.binary(16), pa.binary(21), pa.string(),
    pa.binary(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view(), pa.uuid(),
    pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int16(), pa.int64(), ordered=True),
    pa.run_end_encoded(pa.int32(), pa.string()), pa.run_end_encoded(pa.int16(), pa.int64()),
]  # fmt: skip


def _lists(child: pa.DataType) -> st.SearchStrategy[pa.DataType]:
    makers = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view, lambda kind: pa.list_(kind, 2)]
    return st.sampled_from(makers).map(lambda maker: maker(child))


def _nested(child: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        child.flatmap(_lists),
        st.lists(child, max_size=3).map(lambda kinds: pa.struct([(f"f{n}", k) for n, k in enumerate(kinds)])),
        child.map(lambda kind: pa.map_(pa.string(), kind)),
    )


KINDS = st.recursive(st.sampled_from(FLAT), _nested, max_leaves=4)


def make_array(kind: Any, rows: int, random: np.random.Generator, nulls: float) -> Any:
    """An array with NULLs at every level, with values under the NULLs and items that no list owns."""
    if pa.types.is_null(kind):
        return pa.nulls(rows)
    if pa.types.is_dictionary(kind):
        values = pa.array(["red", "a longer colour", ""] if kind.value_type == pa.string() else [7, 1, 2**40])
        places = pa.array(random.integers(0, 3, rows), kind.index_type, mask=random.random(rows) < nulls)
        return pa.DictionaryArray.from_arrays(places, values, ordered=kind.ordered)
    if pa.types.is_run_end_encoded(kind):
        options = pc.RunEndEncodeOptions(kind.run_end_type)
        values = make_array(kind.value_type, rows, random, nulls)
        return pc.call_function("run_end_encode", [values], options)
    if kind == pa.uuid():
        return pa.ExtensionArray.from_storage(kind, make_array(pa.binary(16), rows, random, nulls))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return make_array(pa.string(), rows, random, nulls).cast(kind)
    keep = pa.py_buffer(np.packbits(random.random(rows) >= nulls, bitorder="little"))
    if pa.types.is_nested(kind):
        return _make_nested(kind, rows, random, nulls, keep)
    if kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        sizes = random.choice([0, 1, 2, 3, 7, 15, 16, 31, 32, 33, 64, 100], rows)
        ends = np.concatenate([[3], 3 + np.cumsum(sizes)])
        ends = ends.astype(np.int64 if "large" in str(kind) else np.int32)
        content = random.integers(97, 123, int(ends[-1]), dtype=np.uint8)
        return pa.Array.from_buffers(kind, rows, [keep, pa.py_buffer(ends), pa.py_buffer(content)])
    if pa.types.is_boolean(kind):
        values = random.integers(0, 256, -(-rows // 8), dtype=np.uint8)
        return pa.Array.from_buffers(kind, rows, [keep, pa.py_buffer(values)])
    width = kind.bit_width // 8
    content = random.integers(0, 256, (rows, width), dtype=np.uint8)
    if not (pa.types.is_integer(kind) or pa.types.is_fixed_size_binary(kind)):
        content[:, 1:] = 0  # small numbers: valid in every type
    if kind == pa.date64():
        content = (content[:, :1].astype(np.int64) * 86_400_000).view(np.uint8)
    return pa.Array.from_buffers(kind, rows, [keep, pa.py_buffer(content)])


def _make_nested(kind: Any, rows: int, random: np.random.Generator, nulls: float, keep: pa.Buffer) -> Any:
    if pa.types.is_struct(kind):
        children = [make_array(kind.field(n).type, rows, random, nulls) for n in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, rows, [keep], children=children)
    if pa.types.is_fixed_size_list(kind):
        child = make_array(kind.value_type, rows * kind.list_size, random, nulls)
        return pa.Array.from_buffers(kind, rows, [keep], children=[child])
    starts = np.concatenate([[2], 2 + np.cumsum(random.integers(0, 4, rows))])
    starts = starts.astype(np.int64 if "large" in str(kind)[:5] else np.int32)
    items = int(starts[-1]) + 1
    if pa.types.is_map(kind):
        pairs = [
            make_array(kind.key_type, items, random, 0),
            make_array(kind.item_type, items, random, nulls),
        ]
        child = pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field])
    else:
        child = make_array(kind.value_type, items, random, nulls)
    buffers = [keep, pa.py_buffer(starts)]
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):  # the last list lies first
        places = np.ascontiguousarray(starts[:-1][::-1])
        sizes = np.ascontiguousarray(np.diff(starts)[::-1])
        buffers = [keep, pa.py_buffer(places), pa.py_buffer(sizes)]
    return pa.Array.from_buffers(kind, rows, buffers, children=[child])


@st.composite
def batches(draw: st.DrawFn, kinds: st.SearchStrategy[pa.DataType] = KINDS) -> pa.RecordBatch:
    chosen = draw(st.lists(kinds, min_size=1, max_size=6))
    rows, random = draw(st.integers(0, 40)), np.random.default_rng(draw(st.integers(0, 99)))
    nulls = [draw(st.sampled_from([0.0, 0.3, 1.0])) for _ in chosen]
    arrays = [make_array(kind, rows, random, share) for kind, share in zip(chosen, nulls, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, [f"c{n}" for n in range(len(arrays))])
    begin = draw(st.integers(0, rows))
    return batch.slice(begin, draw(st.integers(0, rows - begin)))


def there_and_back(batch: pa.RecordBatch) -> pa.RecordBatch:
    layout = RowLayout.of(batch.schema)
    rows, at = layout.encode(batch)
    back = layout.decode(rows, at[:-1])
    back.validate(full=True)
    return back


def is_plain(kind: pa.DataType) -> bool:
    return "dictionary" not in str(kind)  # whose values may come back in another order


@given(batches())
@settings(max_examples=150, deadline=None)
def test_every_type_comes_back_as_it_was(batch: pa.RecordBatch):
    back = there_and_back(batch)
    assert back.schema == batch.schema
    assert back.to_pylist() == batch.to_pylist()
    for number, field in enumerate(batch.schema):
        assert not is_plain(field.type) or back.column(number).equals(batch.column(number))


@given(batches(), st.data())
@settings(max_examples=80, deadline=None)
def test_any_rows_of_some_columns_in_any_order(batch: pa.RecordBatch, data: st.DataObject):
    layout = RowLayout.of(batch.schema)
    rows, at = layout.encode(batch)
    wanted = data.draw(st.lists(st.integers(-1, batch.num_rows - 1), max_size=30))
    names = data.draw(st.lists(st.sampled_from(batch.schema.names), unique=True))
    places = np.array([at[n] if n >= 0 else -1 for n in wanted], dtype=np.int64)
    back = layout.decode(rows, places, names)
    back.validate(full=True)
    lines = batch.select(names).to_pylist()
    assert back.num_rows == len(wanted)
    assert back.to_pylist() == [lines[n] if n >= 0 else dict.fromkeys(names) for n in wanted]
    assert layout.sizes(rows, places).tolist() == [int(at[n + 1] - at[n]) if n >= 0 else 0 for n in wanted]


@given(batches())
@settings(max_examples=50, deadline=None)
def test_equal_rows_have_equal_bytes_whatever_lies_around_them_or_under_their_nulls(batch: pa.RecordBatch):
    layout = RowLayout.of(batch.schema)
    rows, at = layout.encode(batch)
    alone = [layout.encode(batch.slice(n, 1))[0].tobytes() for n in range(batch.num_rows)]
    assert b"".join(alone) == rows.tobytes()
    clean = pa.RecordBatch.from_arrays(
        [pa.array(c.to_pylist(), c.type) if is_rebuilt(c.type) else c for c in batch.columns],
        schema=batch.schema,
    )
    assert layout.encode(clean)[0].tobytes() == rows.tobytes()
    assert not (at % 8).any()


def is_rebuilt(kind: pa.DataType) -> bool:
    """Whether `pa.array` makes such columns from Python values."""
    return not any(word in str(kind) for word in ("dictionary", "run_end", "uuid", "view", "halffloat"))


def test_blocks_of_rows_meet_without_a_seam():
    random = np.random.default_rng(1)
    kinds = [pa.int64(), pa.string(), pa.bool_(), pa.binary(3), pa.list_(pa.string()), pa.int16()]
    arrays = [make_array(kind, 5_000, random, 0.1) for kind in kinds]
    batch = pa.RecordBatch.from_arrays(arrays, [str(n) for n in range(len(kinds))])
    layout = RowLayout.of(batch.schema)
    rows, at = layout.encode(batch)
    for wanted in (random.permutation(5_000), random.integers(0, 5_000, 12_000)):
        assert layout.decode(rows, at[wanted]).equals(batch.take(pa.array(wanted)))


@pytest.mark.parametrize("columns", [
    {"s": ["a", None, "b" * 50]},
    {"s": ["a", None, ""], "t": [None, "x", "yy"]},
    {"b": [True, None, False]},
    {"n": [None, None, None]},
    {f"c{n}": [n, None, -n] for n in range(70)},
    {f"c{n}": [None, "x" * n, ""] for n in range(70)},
], ids=["one string", "two strings", "one boolean", "one NULL column", "70 numbers", "70 strings"])  # fmt: skip
def test_few_and_many_columns(columns: dict[str, list[Any]]):
    batch = pa.RecordBatch.from_pydict(columns)
    assert there_and_back(batch).equals(batch)


def test_rows_without_columns_are_still_counted():
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}, {}], pa.struct([])))
    assert there_and_back(batch).num_rows == 3
    layout = RowLayout.of(pa.schema([("a", pa.int8())]))
    rows, at = layout.encode(pa.RecordBatch.from_pydict({"a": [1, 2]}, layout.schema))
    assert layout.decode(rows, at[:-1], []).num_rows == 2


def test_columns_of_one_name_are_kept_apart():
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array(["x"])], ["twin", "twin"])
    assert there_and_back(batch).equals(batch)


def test_the_first_column_opens_every_row():
    batch = pa.RecordBatch.from_pydict(
        {"wide": [b"x" * 16] * 3, "key": [7, -8, 2**62], "name": ["", "Ada", "Bo"]}
    )
    batch = batch.set_column(0, "wide", batch.column(0).cast(pa.binary(16)))
    layout = RowLayout.of(batch.schema, first="key")
    rows, at = layout.encode(batch)
    assert rows.view(np.int64)[at[:-1] // 8].tolist() == [7, -8, 2**62]
    assert layout.decode(rows, at[:-1]).equals(batch)


def test_nothing_is_written_to_a_buffer_that_is_read():
    batch = pa.RecordBatch.from_pydict({"key": [7, 8], "name": ["Ada", None], "tags": [["x"], []]})
    layout = RowLayout.of(batch.schema)
    rows, at = layout.encode(batch)
    frozen = np.frombuffer(rows.tobytes(), np.uint8)
    places = at[:-1].copy()
    places.flags.writeable = False
    assert layout.decode(frozen, places).equals(batch)


def test_metadata_and_nullability_are_kept():
    fields = [
        pa.field("id", pa.int64(), nullable=False, metadata={"unit": "piece"}),
        pa.field("s", pa.string()),
    ]
    batch = pa.RecordBatch.from_pydict({"id": [1], "s": ["x"]}, pa.schema(fields, {"of": "shop"}))
    assert there_and_back(batch).schema.equals(batch.schema, check_metadata=True)
    layout = RowLayout.of(batch.schema)
    absent = layout.decode(layout.encode(batch)[0], np.array([0, -1]))
    assert absent.schema.field("id").nullable, "an absent row has NULL in every column"


def test_a_type_that_a_row_cannot_hold_is_refused_by_name():
    with pytest.raises(SpecError, match=r"column 'v' has type .*union") as refusal:
        RowLayout.of(pa.schema([("v", pa.sparse_union([pa.field("a", pa.int8())]))]))
    assert refusal.value.column == "v"


def test_a_column_beyond_2_gib_is_refused_before_any_memory_is_taken():
    batch = pa.RecordBatch.from_pydict({"id": [1], "s": ["x" * 1_000_000]})
    layout = RowLayout.of(batch.schema)
    rows, _ = layout.encode(batch)
    assert layout.decode(rows, np.zeros(100, dtype=np.int64)).num_rows == 100
    with pytest.raises(SpecError, match=r"column 's' of 2148 rows is longer than 2 GiB"):
        layout.decode(rows, np.zeros(2148, dtype=np.int64))


def test_a_row_beyond_4_gib_is_refused_before_it_is_read():
    ends = pa.py_buffer(np.array([0, 2**32], dtype=np.int64))
    untouched = pa.py_buffer(np.zeros(2**32, dtype=np.uint8))  # which takes no memory before it is read
    huge = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, untouched])
    with pytest.raises(SpecError, match="longer than 4 GiB"):
        RowLayout.of(pa.schema([("v", huge.type)])).encode(pa.RecordBatch.from_arrays([huge], ["v"]))


AT_THE_EDGE = """
import ctypes, mmap, sys
import numpy as np, pyarrow as pa
from tidemill.master.rows import RowLayout

def at_the_edge(content):
    pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    view = np.frombuffer(pages, np.uint8)
    guard = ctypes.c_void_p(view.ctypes.data + 2 * mmap.PAGESIZE)
    assert ctypes.CDLL(None).mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    edge = view[2 * mmap.PAGESIZE - len(content) : 2 * mmap.PAGESIZE]
    edge[:] = np.frombuffer(content, np.uint8)
    return edge

for size in range(70):
    words = [b"w" * 40, b"x" * size]
    ends = pa.py_buffer(np.array([0, 40, 40 + size], np.int32))
    column = pa.Array.from_buffers(pa.binary(), 2, [None, ends, pa.py_buffer(at_the_edge(b"".join(words)))])
    batch = pa.RecordBatch.from_arrays([column], ["s"])
    layout = RowLayout.of(batch.schema)
    rows, at = layout.encode(batch)
    assert layout.decode(at_the_edge(rows.tobytes()), at[:-1]).column(0).to_pylist() == words
print("unharmed")
"""


def test_no_byte_behind_the_end_of_a_buffer_is_read():
    run = subprocess.run([sys.executable, "-c", AT_THE_EDGE], capture_output=True, text=True, check=False)
    assert run.stdout == "unharmed\n", run.stderr
