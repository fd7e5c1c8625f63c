"""What tasks, driver and loader say to each other, and how it looks as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tidemill.core.errors import LoadError
from tidemill.load.names import check_name
from tidemill.load.tables import TableSpec

ARROW_STREAM = "application/vnd.apache.arrow.stream"
MAX_BLOCK_BYTES = 64 * 10**6
MAX_BLOCK_ROWS = 1_000_000
_MAX_INT = 2**63 - 1


@dataclass(frozen=True)
class Ticket:
    """Who may write: the pipeline, Spark's checkpoint and the fence that `open` gave."""

    pipeline: str
    query_id: str
    fence: int

    def __post_init__(self) -> None:
        check_name("pipeline", self.pipeline)
        check_name("query id", self.query_id)
        whole("fence", self.fence)


@dataclass(frozen=True, order=True)
class BlockName:
    """One block of one attempt of one task."""

    table: str
    partition: int
    attempt: int
    number: int

    def __post_init__(self) -> None:
        check_name("table", self.table)
        for name in ("partition", "attempt", "number"):
            whole(name, getattr(self, name))

    @property
    def label(self) -> str:
        return f"{self.partition}-{self.attempt}-{self.number}"

    @classmethod
    def from_label(cls, table: str, label: str) -> "BlockName":
        """The name from a table and "partition-attempt-number"."""
        parts = label.split("-")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
            raise bad_request(f"block {label[:100]!r} is not partition-attempt-number")
        partition, attempt, number = map(int, parts)
        return cls(table, partition, attempt, number)


@dataclass(frozen=True)
class BlockRef:
    """A staged block as a task reports it to the driver: its name, SHA-256 in hex, and rows."""

    table: str
    partition: int
    attempt: int
    number: int
    digest: str
    rows: int

    def __post_init__(self) -> None:
        whole("rows", self.rows)
        if not isinstance(self.digest, str) or len(self.digest) != 64:
            raise bad_request("digest is not a SHA-256 in hex")

    @property
    def name(self) -> BlockName:
        return BlockName(self.table, self.partition, self.attempt, self.number)


@dataclass(frozen=True)
class OpenRequest:
    """A driver asks to write a pipeline.

    A checkpoint other than the stored one is taken only if `resume_from` is the stored position, or if
    `reset` says that it may start anywhere (rows loaded before stay).
    """

    pipeline: str
    query_id: str
    tables: tuple[TableSpec, ...]
    resume_from: int | None = None
    reset: bool = False

    def __post_init__(self) -> None:
        check_name("pipeline", self.pipeline)
        check_name("query id", self.query_id)
        if self.resume_from is not None:
            whole("resume_from", self.resume_from)
        if not isinstance(self.reset, bool):
            raise bad_request("reset is not true or false")
        if len({table.name.casefold() for table in self.tables}) < len(self.tables):
            raise bad_request("two tables have one name (case does not count)")

    def to_json(self) -> dict[str, Any]:
        tables = [table.to_json() for table in self.tables]
        return {
            "query_id": self.query_id,
            "tables": tables,
            "resume_from": self.resume_from,
            "reset": self.reset,
        }

    @classmethod
    def from_json(cls, pipeline: str, record: Mapping[str, Any]) -> "OpenRequest":
        tables = tuple(TableSpec.from_json(table) for table in _records(record, "tables"))
        return cls(
            pipeline, _get(record, "query_id"), tables, record.get("resume_from"), record.get("reset", False)
        )


@dataclass(frozen=True)
class CommitRequest:
    """A driver asks to make a batch visible: entries [start, end) of the source, and the winning blocks."""

    ticket: Ticket
    batch_id: int
    start: int
    end: int
    blocks: tuple[BlockRef, ...]
    counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("batch_id", "start", "end"):
            whole(name, getattr(self, name))
        if self.end < self.start:
            raise bad_request(f"end {self.end} is before start {self.start}")
        if len({block.name for block in self.blocks}) < len(self.blocks):
            raise bad_request("a block is listed twice")
        for name, count in self.counts.items():
            whole(f"count {name!r}", count)

    def to_json(self) -> dict[str, Any]:
        return {
            "query_id": self.ticket.query_id,
            "fence": self.ticket.fence,
            "start": self.start,
            "end": self.end,
            "blocks": [asdict(block) for block in self.blocks],
            "counts": dict(self.counts),
        }

    @classmethod
    def from_json(cls, pipeline: str, batch_id: int, record: Mapping[str, Any]) -> "CommitRequest":
        names = ("table", "partition", "attempt", "number", "digest", "rows")
        blocks = tuple(
            BlockRef(*(_get(block, name) for name in names)) for block in _records(record, "blocks")
        )
        counts = record.get("counts") or {}
        if not isinstance(counts, dict):
            raise bad_request("counts is not an object of whole numbers")
        ticket = Ticket(pipeline, _get(record, "query_id"), _get(record, "fence"))
        return cls(ticket, batch_id, _get(record, "start"), _get(record, "end"), blocks, counts)


def whole(name: str, value: object) -> int:
    """The value, once it is a whole number from 0 that fits 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_INT:
        raise bad_request(f"{name} is {str(value)[:100]!r}, not a whole number from 0 to 2^63 - 1")
    return value


def whole_from_text(name: str, text: str) -> int:
    """The number that decimal digits of a path, query or header stand for."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise bad_request(f"{name} is {text[:100]!r}, not a whole number from 0 to 2^63 - 1")
    return whole(name, int(text))


def bad_request(what: str) -> LoadError:
    return LoadError(what, code="bad_request", next_move="correct the request", status=422)


def _get(record: Mapping[str, Any], name: str) -> Any:
    if name not in record:
        raise bad_request(f"{name} is missing")
    return record[name]


def _records(record: Mapping[str, Any], name: str) -> Sequence[dict[str, Any]]:
    items = _get(record, name)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise bad_request(f"{name} is not a list of objects")
    return items


__all__ = [
    "ARROW_STREAM",
    "MAX_BLOCK_BYTES",
    "MAX_BLOCK_ROWS",
    "BlockName",
    "BlockRef",
    "CommitRequest",
    "OpenRequest",
    "Ticket",
    "bad_request",
    "whole",
    "whole_from_text",
]
