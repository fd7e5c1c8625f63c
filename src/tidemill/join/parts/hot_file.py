"""The file of a hot-rows generation: a sealed header of 4 KiB, then flat parts that are mapped as they are."""

import json
import os
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.files import seal, sync_folder, unseal
from tidemill.join.parts.kernels import Int64s, UInt32s

FORMAT_VERSION = 1
_HEADER_BYTES = 4096
_ALIGNMENT_BYTES = 4096

Parts = tuple[Int64s, Int64s, UInt32s, pa.RecordBatch, str]


def write_hot_file(
    path: Path, slots: Int64s, row_start: Int64s, frequencies: UInt32s, payload: pa.RecordBatch, identity: str
) -> None:
    """Replace `path`; who has the old file mapped keeps reading the old one."""
    buffers = {
        "slots": pa.py_buffer(slots.data),
        "row_start": pa.py_buffer(row_start.data),
        "frequencies": pa.py_buffer(frequencies.data),
        "schema": payload.schema.serialize(),
        "payload": payload.serialize(),
    }
    header: dict[str, Any] = {"format_version": FORMAT_VERSION, "identity": identity, "parts": {}}
    offset = _HEADER_BYTES
    for name, buffer in buffers.items():
        header["parts"][name] = {"offset": offset, "length": buffer.size, "crc": _crc(buffer)}
        offset += buffer.size + -buffer.size % _ALIGNMENT_BYTES
    header["file_bytes"] = offset
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with aside.open("wb") as file:
        file.write(json.dumps(seal(header)).encode().ljust(_HEADER_BYTES))
        for buffer in buffers.values():
            file.write(buffer)
            file.write(bytes(-buffer.size % _ALIGNMENT_BYTES))
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_folder(path.parent)


def read_hot_file(path: Path) -> Parts:
    """The parts, mapped; the structure is checked, the content only by `verify_hot_file`."""
    header, content = _open(path)
    try:
        part = {name: content.slice(p["offset"], p["length"]) for name, p in header["parts"].items()}
        slots = np.frombuffer(memoryview(part["slots"]), dtype=np.int64).reshape(-1, 2)
        row_start = np.frombuffer(memoryview(part["row_start"]), dtype=np.int64)
        frequencies = np.frombuffer(memoryview(part["frequencies"]), dtype=np.uint32)
        payload = pa.ipc.read_record_batch(part["payload"], pa.ipc.read_schema(part["schema"]))
    except (ValueError, KeyError, pa.ArrowException, OSError) as error:
        raise _damaged(path, str(error)) from error
    fits = (
        len(slots) > len(frequencies)
        and len(row_start) == len(frequencies) + 1
        and row_start[0] == 0
        and row_start[-1] == payload.num_rows
        and bool((np.diff(row_start) >= 0).all())
    )
    if not fits:
        raise _damaged(path, "its parts do not fit each other")
    return slots, row_start, frequencies, payload, str(header["identity"])


def verify_hot_file(path: Path) -> None:
    """Check every byte against the header; reads the whole file."""
    header, content = _open(path)
    for name, part in header["parts"].items():
        if _crc(content.slice(part["offset"], part["length"])) != part["crc"]:
            raise _damaged(path, f"part {name!r} fails its checksum")


def _open(path: Path) -> tuple[dict[str, Any], pa.Buffer]:
    try:
        if path.stat().st_size < _HEADER_BYTES:
            raise _damaged(path, "it ends inside its header")
        content = pa.memory_map(str(path)).read_buffer()
        header = unseal(json.loads(content.slice(0, _HEADER_BYTES).to_pybytes()), str(path))
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if header.get("format_version") != FORMAT_VERSION:
        raise _damaged(path, f"its format version is {header.get('format_version')}, not {FORMAT_VERSION}")
    if header["file_bytes"] != content.size:
        raise _damaged(path, f"it has {content.size} of {header['file_bytes']} bytes")
    return header, content


def _crc(buffer: pa.Buffer) -> int:
    return int(google_crc32c.value(buffer.to_pybytes() if buffer.is_mutable else buffer))


def _damaged(path: Path, why: str) -> StoreError:
    return StoreError(
        f"{path} is no hot-rows file that can be used: {why}",
        code="hot_rows_damaged",
        next_move="delete it: hot rows are collected again from the stream",
        file=str(path),
    )


__all__ = ["read_hot_file", "verify_hot_file", "write_hot_file"]
