"""Master data that follows a Delta table: by its change data feed where it has one, else by reading it again.

The position is the table's version, under the identity of the table: one that was dropped and made anew under the same
name is another feed, and is read whole.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from tidemill.core.errors import SourceError, SpecError
from tidemill.master.feeds import Fed, apply_once, re_read
from tidemill.master.store import MasterData

if TYPE_CHECKING:
    from deltalake import DeltaTable

_ORDER = "_commit_version"
_OPERATION = "_change_type"
_FEED_SWITCH = "delta.enableChangeDataFeed"


def follow_delta(
    path: str | Path,
    table: str | Path,
    *,
    memory: str | int = "512 MB",
    storage_options: dict[str, str] | None = None,
) -> Fed:
    """Bring a store up to the newest version of a Delta table; repeated, it goes on where it ended.

    The first time, and wherever the feed does not reach back to the position, the whole table is compared with the
    store. So it is every time where several rows share a key: a feed does not tell which of them it means.

    Args:
        path: Folder of the store, with the table's columns.
        table: Folder or address of the Delta table.
        memory: What a comparison may take; changes that the feed tells are held beside it.
        storage_options: For tables on an object store, as the package `deltalake` has them.
    """
    opened = _opened(str(table), storage_options)
    feed, newest = f"delta:{opened.metadata().id}", opened.version()
    master = MasterData.open(path)
    master.close()
    position = master.manifest.positions.get(feed)
    if position is not None and position >= newest:
        return Fed("already", master.version, 0)
    if position is not None and master.manifest.most_rows_of_a_key <= 1:
        changes = _changes(opened, position + 1, newest)
        if changes is not None and changes.num_rows:
            return apply_once(path, changes, feed=feed, at=newest, operation=_OPERATION, order=_ORDER)
    return re_read(path, lambda: _rows(opened), memory=memory, feed=feed, at=newest, may_be_empty=True)


def _opened(table: str, storage_options: dict[str, str] | None) -> "DeltaTable":
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise SpecError(
            "following a Delta table needs the package deltalake",
            code="no_deltalake",
            next_move="pip install 'tidemill[delta]'",
        ) from error
    try:
        return DeltaTable(table, storage_options=storage_options)
    except (DeltaError, OSError, ValueError) as error:
        raise _unreadable(table, error) from error


def _changes(table: "DeltaTable", first: int, last: int) -> pa.Table | None:
    """What the feed tells of these versions; None when it does not."""
    from deltalake.exceptions import DeltaError

    if table.metadata().configuration.get(_FEED_SWITCH) != "true":
        return None
    try:
        return pa.RecordBatchReader.from_stream(table.load_cdf(first, last)).read_all()
    except (DeltaError, ValueError, OSError, pa.ArrowException):
        return None  # switched on later than that, or cleaned away: the whole table tells


def _rows(table: "DeltaTable") -> pa.RecordBatchReader:
    from deltalake.exceptions import DeltaError

    try:
        # By the package's own engine: the one of pyarrow does not know deletion vectors and column mapping.
        return pa.RecordBatchReader.from_stream(cast("Any", table).scan())
    except (DeltaError, ValueError, OSError) as error:
        raise _unreadable(table.table_uri, error) from error


def _unreadable(table: str, error: Exception) -> SourceError:
    return SourceError(
        f"cannot read the Delta table {table}: {error}",
        code="delta_unreadable",
        next_move="check the address, the rights, and storage_options",
        retryable=True,
        table=table,
    )


__all__ = ["follow_delta"]
