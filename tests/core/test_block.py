"""Blocks from outside are refused before anything touches their bytes, and frames before they are read."""

import hashlib
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.block import Block, check_plain_schema, decode_block, encode_block, schema_fingerprint
from tidemill.core.errors import SourceError, SpecError
from tidemill.core.wire import Frame, Kind, block_of, pack_block, pack_frame, read_frame

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def batch_of(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(range(rows)), "name": ["x"] * rows}, schema=SCHEMA)


def block_of_rows(rows: int = 3) -> Block:
    return encode_block(batch_of(rows), source="shop", number=1, last_position=rows)


def with_body(body: bytes, rows: int = 3) -> Block:
    return Block("shop", 1, rows, 3, body, hashlib.sha256(body).digest())


def stream(batches: list[pa.RecordBatch], schema: pa.Schema, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def code_of(block: Block, schema: pa.Schema = SCHEMA) -> str:
    with pytest.raises(SourceError) as caught:
        decode_block(block, schema)
    return caught.value.code


def reader_over(content: bytes):
    at = 0

    def read_exactly(count: int) -> bytes:
        nonlocal at
        piece = content[at : at + count]
        at += count
        if len(piece) < count:
            raise EOFError
        return piece

    return read_exactly


def test_rows_survive_the_way() -> None:
    frame = read_frame(reader_over(pack_block(block_of_rows())))
    assert decode_block(block_of(frame), SCHEMA).equals(batch_of(3))


def test_empty_block_is_refused() -> None:
    with pytest.raises(SourceError):
        block_of_rows(0)
    assert code_of(with_body(stream([batch_of(0)], SCHEMA), rows=0)) == "block_size"


def test_changed_body_is_refused() -> None:
    block = block_of_rows()
    assert code_of(replace(block, body=block.body[:-1] + b"!")) == "digest_mismatch"


def test_wrong_row_count_is_refused() -> None:
    assert code_of(replace(block_of_rows(), rows=2)) == "row_count"


def test_other_schema_is_refused() -> None:
    assert (
        code_of(block_of_rows(), pa.schema([("id", pa.int32()), ("name", pa.string())])) == "schema_mismatch"
    )


def test_compressed_body_is_refused_before_it_is_decoded() -> None:
    bomb = pa.RecordBatch.from_pydict({"id": [0] * 1_000_000, "name": [""] * 1_000_000}, schema=SCHEMA)
    before = pa.total_allocated_bytes()
    assert code_of(with_body(stream([bomb], SCHEMA, compression="zstd"), rows=1_000_000)) == "bad_arrow"
    assert pa.total_allocated_bytes() - before <= bomb.nbytes + 1_000_000


def test_two_batches_are_refused() -> None:
    assert code_of(with_body(stream([batch_of(3), batch_of(3)], SCHEMA))) == "bad_arrow"


def test_null_in_required_column_is_refused() -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    batch = pa.RecordBatch.from_arrays([pa.array([1, None], pa.int64())], schema=strict)
    assert code_of(with_body(stream([batch], strict), rows=2), strict) == "null_in_required"


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_mutated_bodies_never_crash(at: int, value: int) -> None:
    body = bytearray(block_of_rows().body)
    body[at % len(body)] = value
    try:
        batch = decode_block(with_body(bytes(body)), SCHEMA)
    except SourceError:
        return
    assert batch.num_rows == 3
    batch.to_pylist()


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.int64()), pa.null(), pa.dictionary(pa.int8(), pa.string()), pa.struct([("a", pa.int8())])],
)
def test_types_that_can_hide_size_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(SpecError, match="'c'"):
        check_plain_schema(pa.schema([("c", kind)]))


def test_fingerprint_tells_schemas_apart() -> None:
    assert schema_fingerprint(SCHEMA) == schema_fingerprint(pa.schema(SCHEMA, metadata={"a": "b"}))
    assert schema_fingerprint(SCHEMA) != schema_fingerprint(
        pa.schema([("id", pa.int64()), ("name", pa.binary())])
    )


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_in_a_frame_header_is_found(at: int, bit: int) -> None:
    content = bytearray(pack_frame(Kind.ACK, {"number": 17}))
    content[at % len(content)] ^= 1 << bit
    with pytest.raises((SourceError, EOFError)):
        read_frame(reader_over(bytes(content)))


def test_block_header_of_wrong_types_is_refused() -> None:
    header = {"source": "shop", "number": "1", "rows": 1, "last_position": 1, "digest": "00"}
    with pytest.raises(SourceError, match="bad frame"):
        block_of(Frame(Kind.BLOCK, header))
