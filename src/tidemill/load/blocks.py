"""A block is whole, plain and small before anything else touches it."""

import hashlib
import struct

import pyarrow as pa

from tidemill.core.errors import LoadError
from tidemill.load.messages import MAX_BLOCK_ROWS
from tidemill.load.tables import TableSpec, columns_of

_MAX_BATCHES = 1000
_METADATA_V5 = 4


def digest_of(body: bytes | bytearray | pa.Buffer) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(body).hexdigest()


def check_block(body: pa.Buffer, table: TableSpec, declared_rows: int) -> None:
    """Refuse whatever could crash a warehouse, grow in memory, or differ from the table.

    The order matters: the schema is compared before a batch is read, so run-end-encoded, null and dictionary
    columns (224 bytes can claim 2,000,000,000 rows) never come to life; compression is found in the metadata,
    so nothing is ever decompressed (5 kB can become 160 MB).
    """
    if declared_rows > MAX_BLOCK_ROWS:
        raise _bad_block(f"{declared_rows:,} rows are declared, {MAX_BLOCK_ROWS:,} are the limit")
    try:
        rows = _read_checked(body, table)
    except (pa.ArrowException, OSError, ValueError, IndexError, struct.error) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise _bad_block(f"not a whole Arrow IPC stream: {first_line[:300]}") from error
    if rows.num_rows != declared_rows:
        raise _bad_block(f"{rows.num_rows:,} rows came, {declared_rows:,} were declared")
    for key in table.keys:
        if rows.column(key).null_count:
            raise LoadError(
                f"key column {key!r} of table {table.name!r} has {rows.column(key).null_count} NULLs",
                code="null_key",
                next_move="send rows without a key to the rejects",
                status=422,
                table=table.name,
                column=key,
            )


def _read_checked(body: pa.Buffer, table: TableSpec) -> pa.Table:
    with pa.ipc.open_stream(body) as reader:
        if not table.accepts(reader.schema):
            raise LoadError(
                f"the block has columns {columns_of(reader.schema)}, table {table.name!r} has "
                f"{columns_of(table.schema)}",
                code="schema_mismatch",
                next_move="send the columns of the table, in its order and types",
                status=422,
                given=columns_of(reader.schema),
                expected=columns_of(table.schema),
            )
        _check_messages(body)
        rows = reader.read_all()
    rows.validate(full=True)
    return rows


def _check_messages(body: pa.Buffer) -> None:
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(body))
    messages.read_next_message()
    for number, message in enumerate(messages):
        if message.type != "record batch":
            raise _bad_block(f"it contains a {message.type} message")
        if number == _MAX_BATCHES:
            raise _bad_block(f"it has more than {_MAX_BATCHES} record batches")
        if _is_compressed(message.metadata.to_pybytes()):
            raise _bad_block("its buffers are compressed, or its metadata is older than version 5")


def _is_compressed(metadata: bytes) -> bool:
    """True if the record batch names a codec; pyarrow does not tell, so the flatbuffer is read here.

    Metadata before version 5 hides the codec elsewhere and is treated as compressed.
    """
    (message,) = struct.unpack_from("<I", metadata, 0)
    version_at, header_at = _field(metadata, message, 0), _field(metadata, message, 2)
    if not version_at or struct.unpack_from("<h", metadata, version_at)[0] != _METADATA_V5:
        return True
    record_batch = header_at + struct.unpack_from("<I", metadata, header_at)[0]
    return _field(metadata, record_batch, 3) != 0


def _field(buffer: bytes, table: int, slot: int) -> int:
    """Where a field of a flatbuffer table is, 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    (vtable_bytes,) = struct.unpack_from("<H", buffer, vtable)
    entry = 4 + 2 * slot
    if entry + 2 > vtable_bytes:
        return 0
    (offset,) = struct.unpack_from("<H", buffer, vtable + entry)
    return table + offset if offset else 0


def _bad_block(what: str) -> LoadError:
    return LoadError(
        f"block refused: {what}",
        code="bad_block",
        next_move="send an uncompressed Arrow IPC stream of the table's columns with X-Row-Count",
        status=422,
    )


__all__ = ["check_block", "digest_of"]
