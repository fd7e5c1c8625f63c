"""Small files that are whole or absent: written aside, synced, renamed; JSON sealed with a checksum."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import google_crc32c

from tidemill.core.errors import StoreError
from tidemill.core.passing import NEXT_MOVE, may_pass


def write_atomically(path: Path, *content: bytes | memoryview) -> None:
    """Replace `path` by `content`, piece after piece, so that a reader or a crash sees the old file or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    with aside.open("wb") as file:
        file.writelines(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names created, renamed or deleted in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def seal(record: dict[str, Any]) -> dict[str, Any]:
    """The record with a checksum of its other fields under `crc`.

    >>> unseal(seal({"entry": 7}), "offset")
    {'entry': 7}
    """
    bare = {k: v for k, v in record.items() if k != "crc"}
    return {**bare, "crc": _crc_of(bare)}


def unseal(record: dict[str, Any], what: str) -> dict[str, Any]:
    """The record without its checksum; a `StoreError` when the two disagree."""
    bare = {k: v for k, v in record.items() if k != "crc"}
    expected = _crc_of(bare)
    if record.get("crc") != expected:
        raise StoreError(
            f"{what} was changed or damaged: checksum {record.get('crc')} where {expected} belongs, in {bare}",
            code="seal_broken",
            next_move="restore it from a backup, or remove it and resume from the warehouse's position",
            record=bare,
        )
    return bare


def write_sealed(path: Path, record: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(seal(record), indent=1) + "\n").encode())


def read_sealed(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        raise StoreError(
            f"cannot read {path}: {error}",
            code="unreadable",
            next_move=NEXT_MOVE if may_pass(error) else "check that the file is there and whole",
            retryable=may_pass(error),
        ) from error
    return unseal(record, str(path))


def _crc_of(record: dict[str, Any]) -> int:
    return int(google_crc32c.value(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()))


__all__ = ["read_sealed", "seal", "sync_folder", "unseal", "write_atomically", "write_sealed"]
