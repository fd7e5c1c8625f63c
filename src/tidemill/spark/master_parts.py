"""The worker's side of a build from a DataFrame: each task writes one pages file and answers with what is in it.

A task may fail half-way, be tried again, or run twice at a time. So a file bears the number of the attempt that
writes it, has its final name only when it is whole, and counts for nothing until the driver has the answer of that
very attempt.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from tidemill.core.errors import InternalError, StoreError
from tidemill.master.batches import one_batch
from tidemill.master.build import coded
from tidemill.master.groups import CodeCollisionError, KeyCounts, codes_of
from tidemill.master.hashing import Int64s
from tidemill.master.history import History
from tidemill.master.history_fold import EXAMPLES, Folding, Unfit
from tidemill.master.index import PageIndex
from tidemill.master.keys import KeyForm
from tidemill.master.layout import PageFile
from tidemill.master.page_writer import PageWriter
from tidemill.master.rows import RowLayout
from tidemill.master.source import open_source
from tidemill.spark.failpoint import die_if_told

ANSWER = "facts string, first_code binary, offset binary, blocks binary, continues binary"
"""One row a task that had rows: JSON, and the columns of its index."""
DONE_SUFFIX = ".bin"
_INDEX_TYPES: dict[str, Any] = {
    "first_code": np.int64,
    "offset": np.uint32,
    "blocks": np.uint32,
    "continues": np.bool_,
}
_NO_INDEX = dict.fromkeys(_INDEX_TYPES, b"")
_PIECE_BYTES = 8 * 1024 * 1024
"""Rows encoded at a time. A piece ends with a page that is not full, so small batches are put together: with Spark's
10,000 rows of 120 B a page in 75 would be half empty. Larger ones are cut, since encoding holds three copies."""


@dataclass(frozen=True)
class Part:
    """A pages file that an attempt wrote, and what the manifest must know of it."""

    file: PageFile
    """Under the name that the attempt gave it."""
    counts: dict[str, int]
    """The `KeyCounts` of its rows."""
    most_rows_of_a_page: int
    index: PageIndex

    @classmethod
    def of(cls, answer: dict[str, Any]) -> "Part | None":
        """The part that a task's answer tells of; None when two of its keys have the same code."""
        facts = json.loads(answer["facts"])
        if facts is None:
            return None
        columns = {name: np.frombuffer(answer[name], kind) for name, kind in _INDEX_TYPES.items()}
        file = np.zeros(len(columns["offset"]), dtype=np.int64)
        index = PageIndex.of(**columns, file=file, last_code=facts["last_code"])
        return cls(PageFile(**facts["file"]), facts["counts"], facts["most_rows_of_a_page"], index)


@dataclass(frozen=True)
class PartWriter:
    """What a worker must know; travels inside the functions that Spark ships."""

    folder: Path
    """For the files of all attempts; driver and workers see the same one."""
    given: pa.Schema
    """Of the DataFrame, in Arrow's types."""
    schema: pa.Schema
    """As rows are stored, with the codes of `form`."""
    form: KeyForm
    page_bytes: int
    history: History | None = None
    """Where rows are versions, which are folded before they are written."""

    def codes(self, *keys: pa.Array) -> pa.Array:  # type: ignore[type-arg]  # Spark reads these hints at run time
        """The code of each row, by which Spark spreads and sorts the rows."""
        return pa.array(self.form.codes(keys)[0])

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of one task, which come in order of code; its answer."""
        pieces = self._in_order(_pieces(self._coded(batches)))
        try:
            if self.history is None:
                yield from self._write(pieces, self.schema)
                return
            folding = Folding(self.history, self.form)
            answers = list(self._write(folding.fold(pieces), self.history.page_schema(self.form)))
            yield from [_unfit_answer(folding.unfit)] if folding.unfit.counts else answers
        except CodeCollisionError:
            yield _answer(None, _NO_INDEX)

    def _write(self, pieces: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        first = next(pieces, None)
        if first is None:
            return
        file = self.folder / _attempt()
        try:
            writer = PageWriter(file, RowLayout.of(schema, first=self.form.code_column), self.page_bytes)
        except FileNotFoundError as error:
            raise _not_shared(self.folder) from error
        counts = KeyCounts(self.form)
        with writer:
            for piece in chain([first], pieces):
                counts.add(piece)
                writer.add(piece)
                die_if_told("master_part")
        done = file.rename(file.with_suffix(DONE_SUFFIX))
        index = writer.index()
        facts = {
            "file": asdict(writer.finished(done.name)),
            "counts": {name: getattr(counts, name) for name in COUNTS},
            "most_rows_of_a_page": writer.most_rows_of_a_page,
            "last_code": index.last_code,
        }
        columns = {name: getattr(index, name).astype(kind) for name, kind in _INDEX_TYPES.items()}
        yield _answer(facts, {name: column.tobytes() for name, column in columns.items()})

    def _coded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Spark names the session's time zone in its types, and strings may have long offsets.
        given = (batch.rename_columns(self.given.names).cast(self.given) for batch in batches)
        rows = open_source(pa.RecordBatchReader.from_batches(self.given, given), self.form.columns)
        return (coded(batch, self.form, self.schema) for batch in rows.batches)

    def _in_order(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The pieces, after a proof that they are sorted: a page out of order would hide its rows."""
        last: Int64s = np.empty(0, dtype=np.int64)
        for piece in pieces:
            codes = np.concatenate([last, codes_of(piece, self.form)])
            if not np.all(codes[:-1] <= codes[1:]):
                raise InternalError(
                    "Spark gave a task rows that are not sorted by code",
                    code="not_sorted",
                    next_move="report it, with the plan of the DataFrame",
                )
            last = codes[-1:]
            yield piece


COUNTS = ("rows", "row_bytes", "distinct_keys", "most_rows_of_a_key")


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about `_PIECE_BYTES`."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        rows = max(1, batch.num_rows * _PIECE_BYTES // max(1, batch.nbytes))
        for at in range(0, batch.num_rows, rows):
            held.append(batch.slice(at, rows))
            held_bytes += held[-1].nbytes
            if held_bytes >= _PIECE_BYTES:
                yield one_batch(held, batch.schema)
                held, held_bytes = [], 0
    if held:
        yield one_batch(held, held[0].schema)


def _attempt() -> str:
    context = TaskContext.get()
    if context is None:
        raise InternalError("parts are written by Spark tasks only", code="no_task")
    # The attempt's number is unique in the session; those of a task repeat with a stage.
    return f"{context.partitionId():05d}-{context.taskAttemptId()}.part"


def _answer(facts: dict[str, Any] | None, index: dict[str, bytes]) -> pa.RecordBatch:
    return pa.record_batch({"facts": [json.dumps(facts)], **{name: [told] for name, told in index.items()}})


def _unfit_answer(unfit: Unfit) -> pa.RecordBatch:
    return _answer({"unfit": unfit.counts, "keys": unfit.keys}, _NO_INDEX)


def refuse_unfit_versions(answers: pa.Table, form: KeyForm, rows: int) -> None:
    """Stop with the sum of what all tasks found, when any has found versions that no history can have."""
    whole = Unfit(form, rows)
    for told in answers.column("facts").to_pylist():
        facts = json.loads(str(told)) or {}
        for what, count in facts.get("unfit", {}).items():
            whole.counts[what] = whole.counts.get(what, 0) + count
            whole.keys[what] = [*whole.keys.get(what, []), *facts["keys"][what]][:EXAMPLES]
    whole.refuse()


def _not_shared(folder: Path) -> StoreError:
    import socket

    return StoreError(
        f"a Spark worker on {socket.gethostname()} does not see {folder}",
        code="not_shared",
        next_move="give a path on storage that driver and workers share, under the same name",
        path=str(folder),
    )


__all__ = ["ANSWER", "COUNTS", "DONE_SUFFIX", "Part", "PartWriter", "refuse_unfit_versions"]
