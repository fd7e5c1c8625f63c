"""Named Arrow batches and plain facts as one sealed block of bytes."""

import json
from collections.abc import Mapping
from typing import Any

import google_crc32c
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.files import seal, unseal
from tidemill.master.batches import one_batch

FORMAT_VERSION = 1
_MAGIC = b"TMSNAP\n"


def pack(facts: Mapping[str, Any], batches: Mapping[str, pa.RecordBatch]) -> bytes:
    """A block that `unpack` gives back: magic, one line of sealed JSON, then the batches."""
    bodies = {name: _as_stream(batch) for name, batch in batches.items()}
    header = {
        "format_version": FORMAT_VERSION,
        "facts": dict(facts),
        "parts": [[name, len(body), google_crc32c.value(body)] for name, body in bodies.items()],
    }
    return _MAGIC + json.dumps(seal(header)).encode() + b"\n" + b"".join(bodies.values())


def unpack(block: bytes) -> tuple[dict[str, Any], dict[str, pa.RecordBatch]]:
    """Facts and batches of a block; a `StoreError` when a byte of it changed."""
    end = block.find(b"\n", len(_MAGIC))
    if not block.startswith(_MAGIC) or end < 0:
        raise _damaged("it does not start as one")
    try:
        header = unseal(json.loads(block[len(_MAGIC) : end]), "snapshot")
    except ValueError as error:
        raise _damaged(str(error)) from error
    if header["format_version"] != FORMAT_VERSION:
        raise _damaged(f"its format version is {header['format_version']}, not {FORMAT_VERSION}")
    batches, at = {}, end + 1
    for name, length, crc in header["parts"]:
        body = block[at : at + length]
        if google_crc32c.value(body) != crc:
            raise _damaged(f"part {name!r} fails its checksum")
        reader = pa.ipc.open_stream(body)
        batches[name] = one_batch(list(reader), reader.schema)
        at += length
    return header["facts"], batches


def _as_stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _damaged(why: str) -> StoreError:
    return StoreError(
        f"this is no snapshot of a join that can be restored: {why}",
        code="snapshot_damaged",
        next_move="start the join without it and replay the stream",
    )


__all__ = ["pack", "unpack"]
