"""Blocks: numbered pieces of one source's rows, as they cross process borders."""

import hashlib
import json
import re
import struct
from dataclasses import dataclass, field

import pyarrow as pa

from tidemill.core.errors import SourceError, SpecError

MAX_BODY_BYTES = 64 * 2**20
MAX_BLOCK_ROWS = 1_000_000
_SOURCE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_COMPRESSION_FIELD, _HEADER_FIELD = 3, 2  # of the flatbuffer tables RecordBatch and Message
_IS_PLAIN = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_temporal,
)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one source, in its order.

    Attributes:
        source: Name of the source.
        number: 1, 2, 3, ... for each source, without gaps.
        rows: Rows in the body, at least one.
        last_position: The source's own position of the last row, such as a rowid.
        body: Arrow IPC stream: schema and one record batch, uncompressed.
        digest: SHA-256 of the body.
    """

    source: str
    number: int
    rows: int
    last_position: int
    body: bytes = field(repr=False)
    digest: bytes = field(repr=False)


def encode_block(batch: pa.RecordBatch, *, source: str, number: int, last_position: int) -> Block:
    """The batch as a block."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    body = sink.getvalue().to_pybytes()
    if not 0 < batch.num_rows <= MAX_BLOCK_ROWS or len(body) > MAX_BODY_BYTES:
        raise _refused(
            f"a block of {batch.num_rows} rows and {len(body)} bytes cannot be sent",
            "block_size",
            f"keep blocks within 1 to {MAX_BLOCK_ROWS} rows and {MAX_BODY_BYTES} bytes",
        )
    return Block(source, number, batch.num_rows, last_position, body, hashlib.sha256(body).digest())


def decode_block(block: Block, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a block from outside, or a `SourceError` that says what is wrong with it.

    Digest and sizes come first and full validation last: unvalidated Arrow bytes crash the process that
    reads them, and compressed or run-end-encoded bodies of a few kilobytes claim gigabytes.
    """
    check_source_name(block.source)
    if not 0 < block.rows <= MAX_BLOCK_ROWS or not 0 < len(block.body) <= MAX_BODY_BYTES:
        raise _refused(
            f"block {block.number} of {block.source} declares {block.rows} rows in {len(block.body)} bytes",
            "block_size",
            f"send 1 to {MAX_BLOCK_ROWS} rows in at most {MAX_BODY_BYTES} bytes",
        )
    if hashlib.sha256(block.body).digest() != block.digest:
        raise _refused(
            f"block {block.number} of {block.source} does not match its digest",
            "digest_mismatch",
            "send it again",
            retryable=True,
        )
    try:
        batch = _parse(block.body, schema)
        batch.validate(full=True)
    except (pa.ArrowException, struct.error, OSError, ValueError, StopIteration) as error:
        raise _refused(
            f"block {block.number} of {block.source} is not valid Arrow: {error}",
            "bad_arrow",
            "send one uncompressed record batch as an Arrow IPC stream",
        ) from error
    if batch.num_rows != block.rows:
        raise _refused(
            f"block {block.number} of {block.source} declares {block.rows} rows and holds {batch.num_rows}",
            "row_count",
            "declare the rows that the body holds",
        )
    check_required_columns(batch)
    return batch


def _parse(body: bytes, schema: pa.Schema) -> pa.RecordBatch:
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    found = pa.ipc.read_schema(messages.read_next_message())
    if not found.equals(schema):
        raise _refused(
            f"the block has columns ({_describe(found)}) where ({_describe(schema)}) belong",
            "schema_mismatch",
            "give source and staging log the same schema",
        )
    message = messages.read_next_message()
    if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
        raise ValueError("not a plain, uncompressed record batch")
    batch = pa.ipc.read_record_batch(message, found)
    try:
        messages.read_next_message()
    except StopIteration:
        return batch
    raise ValueError("more than one record batch")


def _is_compressed(message: bytes) -> bool:
    """Whether a flatbuffer message has a RecordBatch with a compression field; read without decoding it."""

    def locate(table: int, index: int) -> int:
        vtable = table - struct.unpack_from("<i", message, table)[0]
        slot = 4 + 2 * index
        if vtable < 0 or slot >= struct.unpack_from("<H", message, vtable)[0]:
            return 0
        offset: int = struct.unpack_from("<H", message, vtable + slot)[0]
        return table + offset if offset else 0

    root: int = struct.unpack_from("<I", message)[0]
    header = locate(root, _HEADER_FIELD)
    if header == 0:
        raise ValueError("a message without a header")
    batch: int = header + struct.unpack_from("<I", message, header)[0]
    return locate(batch, _COMPRESSION_FIELD) != 0


def check_required_columns(batch: pa.RecordBatch) -> None:
    """Refuse NULLs in columns that the schema declares without them (Arrow itself does not look)."""
    for column, declared in zip(batch.columns, batch.schema, strict=True):
        if not declared.nullable and column.null_count:
            raise _refused(
                f"column {declared.name!r} holds {column.null_count} NULLs but is declared without",
                "null_in_required",
                "declare the column nullable or fix the rows",
            )


def check_plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema, or a `SpecError` naming the first column whose type blocks cannot carry."""
    for column in schema:
        if not any(is_plain(column.type) for is_plain in _IS_PLAIN):
            raise SpecError(
                f"column {column.name!r} has type {column.type}, which blocks do not carry",
                code="type_not_plain",
                next_move="use numbers, text, binary, dates, times or decimals",
                column=column.name,
            )
    if len(schema) == 0 or len(set(schema.names)) != len(schema):
        raise SpecError(
            f"columns ({', '.join(schema.names)}) are none or not distinct",
            code="bad_columns",
            next_move="give each column its own name",
        )
    return schema


def check_source_name(name: str) -> str:
    """The name, or a `SpecError`: names become file names, so only plain characters pass."""
    if not _SOURCE_NAME.fullmatch(name):
        raise SpecError(
            f"{name!r} is not a source name",
            code="bad_source_name",
            next_move="use 1 to 128 letters, digits, '_', '-' and '.', without a leading '.'",
        )
    return name


def schema_fingerprint(schema: pa.Schema) -> str:
    """A short text that is equal for equal column names, types and nullability.

    >>> schema_fingerprint(pa.schema([("id", pa.int64())]))
    'a23fec7ef8093742'
    """
    columns = [[column.name, str(column.type), column.nullable] for column in schema]
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:16]


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)


def _refused(what: str, code: str, next_move: str, *, retryable: bool = False) -> SourceError:
    return SourceError(what, code=code, next_move=next_move, retryable=retryable)


__all__ = [
    "MAX_BLOCK_ROWS",
    "MAX_BODY_BYTES",
    "Block",
    "check_plain_schema",
    "check_required_columns",
    "check_source_name",
    "decode_block",
    "encode_block",
    "schema_fingerprint",
]
