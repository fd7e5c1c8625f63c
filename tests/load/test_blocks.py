"""Hostile and damaged blocks: refused with 4xx, and the loader lives."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import LoadError
from tidemill.load.blocks import check_block
from tidemill.load.tables import TableSpec
from tidemill.load.warehouses.duckdb import DuckdbWarehouse

from .harness import SALES, sales

WIDE = TableSpec(
    "wide",
    pa.schema(
        [
            ("i", pa.int64()),
            ("s", pa.string()),
            ("b", pa.bool_()),
            ("d", pa.decimal128(9, 2)),
            ("x", pa.binary()),
        ]
    ),
)


def stream_of(rows: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_table(rows)
    return sink.getvalue().to_pybytes()


def wide_rows(count: int) -> pa.Table:
    rows = [
        {"i": n, "s": f"row {n}" if n % 3 else None, "b": n % 2 == 0, "d": None, "x": bytes([n % 256])}
        for n in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=WIDE.schema)


def refusal(body: bytes, table: TableSpec = SALES, rows: int = 10) -> str:
    with pytest.raises(LoadError) as caught:
        check_block(pa.py_buffer(body), table, rows)
    assert 400 <= caught.value.status < 500
    return str(caught.value)


def test_a_good_block_passes() -> None:
    check_block(pa.py_buffer(stream_of(sales(0, 10))), SALES, 10)
    check_block(pa.py_buffer(stream_of(sales(0, 0))), SALES, 0)


def test_compressed_blocks_are_refused_before_anything_is_decompressed() -> None:
    for codec in ("zstd", "lz4"):
        assert "compressed" in refusal(stream_of(sales(0, 10), compression=codec))
    assert "older than version 5" in refusal(
        stream_of(sales(0, 10), metadata_version=pa.ipc.MetadataVersion.V4)
    )


@pytest.mark.parametrize(
    "column",
    [
        pa.nulls(10),
        pa.array(["a"] * 10).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays([10], ["a"]),
        pa.array([["a"]] * 10),
        pa.array(["a"] * 10, pa.large_string()),
    ],
    ids=lambda column: str(column.type)[:10],
)
def test_columns_that_are_not_plain(column: Any) -> None:
    assert "has columns" in refusal(stream_of(pa.table({"id": range(10), "city": column})))


def test_other_names_orders_and_counts() -> None:
    assert "has columns" in refusal(stream_of(sales(0, 10).rename_columns(["id", "town"])))
    assert "has columns" in refusal(stream_of(sales(0, 10).select(["city", "id"])))
    assert "10 rows came, 11 were declared" in refusal(stream_of(sales(0, 10)), rows=11)
    assert "1,000,001 rows are declared" in refusal(stream_of(sales(0, 10)), rows=1_000_001)
    many = pa.concat_tables([sales(0, 1)] * 1001)
    assert "record batches" in refusal(stream_of(many), rows=1001)


def test_not_utf8() -> None:
    raw = pa.array([b"\xff\xfe"], pa.binary()).buffers()
    text = pa.Array.from_buffers(pa.string(), 1, raw)
    assert "UTF8" in refusal(stream_of(pa.table([pa.array([1]), text], schema=SALES.schema)), rows=1)


@pytest.mark.parametrize("kept", [0, 1, 8, 100, 0.5, 0.9])
def test_truncated_blocks(kept: float) -> None:
    body = stream_of(sales(0, 10))
    refusal(body[: int(kept * len(body)) if isinstance(kept, float) else kept])


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckdbWarehouse]:
    opened = DuckdbWarehouse(tmp_path_factory.mktemp("blocks") / "w.duckdb")
    with opened.transaction() as transaction:
        transaction.check_or_create(WIDE)
    yield opened
    opened.close()


@settings(max_examples=150, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), min_size=1, max_size=6))
def test_flipped_bits_never_crash_what_comes_after(
    warehouse: DuckdbWarehouse, flips: list[tuple[int, int]]
) -> None:
    """The digest finds them all; this is the second lock: what still passes is harmless to DuckDB."""
    body = bytearray(stream_of(wide_rows(20)))
    for where, bit in flips:
        body[where % len(body)] ^= 1 << bit
    with suppress(LoadError):
        check_block(pa.py_buffer(bytes(body)), WIDE, 20)
        with warehouse.transaction() as transaction:
            transaction.append(WIDE, pa.ipc.open_stream(bytes(body)).read_all())
