"""Blocks wait here as files until their batch is committed, across a restart of the loader."""

import shutil
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidemill.core.errors import LoadError
from tidemill.core.units import format_bytes
from tidemill.load.blocks import digest_of
from tidemill.load.messages import BlockName, BlockRef, Ticket


@dataclass(frozen=True)
class _Staged:
    path: Path
    digest: str
    size_bytes: int


_Batch = tuple[Ticket, int]


class StagingArea:
    """Files `staging-v1/pipeline/query_id/fence/batch_id/table/partition-attempt-number.digest.arrow`.

    The fence is in the path since Spark's attempt numbers start over with each driver. Files are not synced:
    one that a power cut tore fails its digest, is dropped, and the commit asks for it again.
    """

    def __init__(self, state_folder: Path, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._folder = state_folder / "staging-v1"
        self._aside = state_folder / "staging-aside"
        self._lock = threading.Lock()
        self._batches: dict[_Batch, dict[BlockName, _Staged]] = {}
        self._reserved_bytes = 0
        self._folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._aside, ignore_errors=True)
        self._aside.mkdir()
        for path in self._folder.glob("*/*/*/*/*/*.arrow"):
            self._recover(path)

    @property
    def held_bytes(self) -> int:
        with self._lock:
            return self._held_bytes()

    def staged_blocks(self, pipeline: str) -> int:
        with self._lock:
            return sum(
                len(blocks) for (ticket, _), blocks in self._batches.items() if ticket.pipeline == pipeline
            )

    @contextmanager
    def room(self, size_bytes: int) -> Iterator[None]:
        """Hold room for an arriving block, or refuse before its body is read."""
        with self._lock:
            taken = self._held_bytes() + self._reserved_bytes
            if taken + size_bytes > self.limit_bytes:
                raise LoadError(
                    f"staging holds {format_bytes(taken)} of {format_bytes(self.limit_bytes)}, a block of "
                    f"{format_bytes(size_bytes)} does not fit",
                    code="staging_full",
                    next_move="wait for the next commit; if one batch is bigger than staging, raise its limit",
                    retryable=True,
                    status=429,
                    retry_after_seconds=1,
                )
            self._reserved_bytes += size_bytes
        try:
            yield
        finally:
            with self._lock:
                self._reserved_bytes -= size_bytes

    def put(self, ticket: Ticket, batch_id: int, name: BlockName, body: pa.Buffer, digest: str) -> bool:
        """Keep a checked block; True if the same block was there already."""
        aside = self._aside / uuid.uuid4().hex
        aside.write_bytes(body)
        with self._lock:
            blocks = self._batches.setdefault((ticket, batch_id), {})
            present = blocks.get(name)
            if present is not None:
                aside.unlink()
                _check_same(name, present.digest, digest)
                return True
            path = self._path(ticket, batch_id, name, digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            aside.replace(path)
            blocks[name] = _Staged(path, digest, body.size)
            return False

    def load(self, ticket: Ticket, batch_id: int, refs: Sequence[BlockRef]) -> dict[str, pa.Table]:
        """Rows of the listed blocks by table; blocks of losing attempts stay out."""
        with self._lock:
            blocks = dict(self._batches.get((ticket, batch_id), {}))
        tables: dict[str, list[pa.Table]] = {}
        for ref in refs:
            staged = blocks.get(ref.name)
            rows = _read(staged) if staged is not None and staged.digest == ref.digest else None
            if rows is None or rows.num_rows != ref.rows:
                raise _missing(ref, batch_id)
            tables.setdefault(ref.table, []).append(rows)
        return {table: pa.concat_tables(parts) for table, parts in tables.items()}

    def forget_finished(self, pipeline: str, fence: int, last_batch_id: int | None) -> None:
        """Drop blocks of `pipeline` that no commit can name any more: older fences, committed batches."""
        done = -1 if last_batch_id is None else last_batch_id
        with self._lock:
            for ticket, batch_id in list(self._batches):
                if ticket.pipeline == pipeline and (ticket.fence < fence or batch_id <= done):
                    del self._batches[ticket, batch_id]
                    shutil.rmtree(self._batch_folder(ticket, batch_id), ignore_errors=True)

    def forget_unknown(self, known_pipelines: set[str]) -> None:
        """Drop blocks of pipelines that the warehouse does not know."""
        with self._lock:
            strangers = {ticket.pipeline for ticket, _ in self._batches} - known_pipelines
        for pipeline in strangers:
            self.forget_finished(pipeline, fence=2**63, last_batch_id=None)

    def _recover(self, path: Path) -> None:
        pipeline, query_id, fence, batch_id, table, file_name = path.relative_to(self._folder).parts
        label, digest, _ = file_name.split(".")
        staged = _Staged(path, digest, path.stat().st_size)
        if _read(staged) is None:
            path.unlink()
            return
        batch = self._batches.setdefault((Ticket(pipeline, query_id, int(fence)), int(batch_id)), {})
        batch[BlockName.from_label(table, label)] = staged

    def _held_bytes(self) -> int:
        return sum(staged.size_bytes for blocks in self._batches.values() for staged in blocks.values())

    def _batch_folder(self, ticket: Ticket, batch_id: int) -> Path:
        return self._folder / ticket.pipeline / ticket.query_id / str(ticket.fence) / str(batch_id)

    def _path(self, ticket: Ticket, batch_id: int, name: BlockName, digest: str) -> Path:
        return self._batch_folder(ticket, batch_id) / name.table / f"{name.label}.{digest}.arrow"


def _read(staged: _Staged) -> pa.Table | None:
    """Rows of a staged file without a copy, None if it is gone or not what was checked."""
    try:
        with pa.memory_map(str(staged.path)) as file:
            body = file.read_buffer()
        if digest_of(body) != staged.digest:
            return None
        return pa.ipc.open_stream(body).read_all()
    except (OSError, pa.ArrowException):
        return None


def _check_same(name: BlockName, present: str, given: str) -> None:
    if present != given:
        raise LoadError(
            f"block {name.table}/{name.label} is staged with digest {present}, now it came with {given}",
            code="digest_conflict",
            next_move="send it under its own attempt number",
            status=409,
            staged_digest=present,
            given_digest=given,
        )


def _missing(ref: BlockRef, batch_id: int) -> LoadError:
    return LoadError(
        f"block {ref.table}/{ref.name.label} of batch {batch_id} with digest {ref.digest} is not staged",
        code="missing_block",
        next_move="send the blocks of the batch again, then commit",
        retryable=True,
        status=409,
        table=ref.table,
        block=ref.name.label,
    )


__all__ = ["StagingArea"]
