"""Where a stream begins: checkpoint and warehouse are compared before the query starts."""

import fcntl
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill.core.errors import LoadError, SpecError
from tidemill.core.files import read_sealed, write_atomically, write_sealed
from tidemill.load.client import LoaderClient, TableSpec, Ticket

FORMAT = 1
_OURS = "tidemill.json"
_SPARKS = "metadata"


@dataclass(frozen=True)
class Resumed:
    """A pipeline opened at the loader."""

    ticket: Ticket
    checkpoint: Path
    start_entry: int
    """Where the checkpoint's first batch begins or began."""


def open_pipeline(
    client: LoaderClient, pipeline: str, checkpoint: Path, tables: Sequence[TableSpec]
) -> Resumed:
    """Agree with the loader on who writes and from where.

    With a checkpoint, its identity must be the one that the warehouse knows. Without one, the stream begins where
    the warehouse stands, so a deleted checkpoint loses and doubles nothing: the new identity is adopted by the
    loader first and written down second, hence a crash in between repeats harmlessly.
    """
    checkpoint.mkdir(parents=True, exist_ok=True)
    _lock(checkpoint)
    if (checkpoint / _OURS).exists():
        record = read_sealed(checkpoint / _OURS)
        opened = client.open(pipeline, record["query_id"], tables)
        return Resumed(opened.ticket, checkpoint, record["start_entry"])
    if (checkpoint / "offsets").exists():
        raise SpecError(
            f"{checkpoint} is a checkpoint that was not made by a Tidemill pipeline",
            code="foreign_checkpoint",
            next_move="give the pipeline a folder of its own",
        )
    start_entry = _warehouse_position(client, pipeline)
    query_id = str(uuid.uuid4())
    opened = client.open(pipeline, query_id, tables, resume_from=start_entry)
    # Spark takes the query id from this file when it is there, so ids come from us and are known beforehand.
    write_atomically(checkpoint / _SPARKS, f'{{"id":"{query_id}"}}'.encode())
    write_sealed(checkpoint / _OURS, {"format": FORMAT, "query_id": query_id, "start_entry": start_entry})
    return Resumed(opened.ticket, checkpoint, start_entry)


_locks: dict[Path, int] = {}
"""Held until this process ends, whatever way it ends."""


def _lock(checkpoint: Path) -> None:
    if checkpoint in _locks:
        return
    handle = os.open(checkpoint / "tidemill.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise SpecError(
            f"another driver runs with the checkpoint {checkpoint}",
            code="checkpoint_in_use",
            next_move="stop it first, or give this pipeline a checkpoint of its own",
            checkpoint=str(checkpoint),
        ) from None
    _locks[checkpoint] = handle


def _warehouse_position(client: LoaderClient, pipeline: str) -> int:
    try:
        position = client.status(pipeline)["position"]
    except LoadError as error:
        if error.code != "unknown_pipeline":
            raise
        position = None
    return int(position or 0)


__all__ = ["Resumed", "open_pipeline"]
