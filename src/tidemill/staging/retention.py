"""The mark up to which the warehouse has a log's entries; the writer deletes segments below it."""

from pathlib import Path

from tidemill.core.errors import StoreError
from tidemill.core.files import read_sealed, write_sealed
from tidemill.staging.reader import LogReader

_MARK_FILE, _MARK_FORMAT = "consumed", 1


def mark_consumed(path: Path | str, before_entry: int) -> None:
    """Tell the writer that the warehouse has every entry below `before_entry`; a lower mark than the last is kept out."""
    with LogReader(path) as reader:
        entries, log_id = reader.head().entries, reader.log_id
    if not 0 <= before_entry <= entries:
        raise StoreError(
            f"cannot mark entries below {before_entry} as consumed: the log in {path} has {entries}",
            code="consumed_beyond_head",
            next_move="check that the warehouse's position belongs to this log",
            before_entry=before_entry,
            entries=entries,
        )
    if before_entry > read_consumed(Path(path), log_id):
        write_sealed(
            Path(path) / _MARK_FILE, {"format": _MARK_FORMAT, "log_id": log_id, "before_entry": before_entry}
        )


def read_consumed(folder: Path, log_id: str) -> int:
    """Entries below this one are in the warehouse; 0 while nobody said so."""
    if not (folder / _MARK_FILE).exists():
        return 0
    mark = read_sealed(folder / _MARK_FILE)
    if mark["format"] != _MARK_FORMAT or mark["log_id"] != log_id:
        raise StoreError(
            f"the mark {folder / _MARK_FILE} belongs to log {mark['log_id']}, not to {log_id}",
            code="foreign_mark",
            next_move="remove the file; the warehouse writes it again",
        )
    return int(mark["before_entry"])


__all__ = ["mark_consumed", "read_consumed"]
