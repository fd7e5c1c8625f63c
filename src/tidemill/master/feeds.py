"""Changes come from a feed, each exactly once: how far the feed has come stands in the version that its changes made.

A version is whole or absent, and so is the position in its manifest. Who feeds asks the current version first and skips
what it has; another writer in between makes the attempt stale, and it begins anew with that question.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from tidemill.core.errors import SpecError, StoreError
from tidemill.core.units import format_count, parse_bytes
from tidemill.master.apply import refuse_given_order, refuse_stale
from tidemill.master.feeds_difference import OPERATION, ReRead, TooManyChangesError, folder_beside
from tidemill.master.feeds_latest import latest_changes
from tidemill.master.source import Source
from tidemill.master.store import MasterData

MOST_WAIT_SECONDS = 60.0
"""For another writer of the store, before a feed gives up."""
_FIRST_WAIT_SECONDS = 0.05


@dataclass(frozen=True)
class Fed:
    """What became of changes."""

    how: Literal["applied", "already", "nothing", "rebuilt"]
    """A new version; a position that the store has; no change in them; too many for memory, so all was built anew."""
    version: int
    changes: int | None
    """None when that was not counted."""


def apply_once(
    path: str | Path,
    changes: pa.Table,
    *,
    feed: str,
    at: int,
    operation: str = "_op",
    order: str | None = None,
) -> Fed:
    """Apply changes, unless the store has them: it keeps the greatest position of each feed.

    Args:
        path: Folder of the store.
        changes: Rows with the store's columns, and one that names the operation: insert, update, delete (or i, u, d), or
            update_before and update_after where an update comes as two rows. Other columns are left out.
        feed: Where they come from; a name that no other feed of this store has.
        at: Position of these changes, greater than of those before them. Repeated changes come with the same one.
        operation: Name of the column with the operation.
        order: Column that tells which of several changes of a key is the last: it alone counts, an insert like an
            update. Of two that are equal in it, one that leaves a row wins over one that removes it. Without such a
            column a key may come once, or with inserts only.
    """

    def attempt(master: MasterData) -> Fed:
        if master.manifest.positions.get(feed, -1) >= at:
            return Fed("already", master.version, 0)
        latest = latest_changes(changes, master, operation, order)
        if latest.num_rows == 0:
            return Fed("nothing", master.version, 0)
        changed = master.apply(latest, operation=operation, positions={feed: at})
        return Fed("applied", changed.version, latest.num_rows)

    return until_not_stale(path, attempt)


def re_read(
    path: str | Path,
    source: Source | Callable[[], Source],
    *,
    memory: str | int = "512 MB",
    feed: str | None = None,
    at: int = 0,
    may_be_empty: bool = False,
) -> Fed:
    """Make the store equal to a table by applying what differs, key by key.

    A source with the same rows makes no version. Changes that do not fit into half of the memory make a build of all.

    Args:
        path: Folder of the store.
        source: As for a build, with the store's columns; may be far bigger than memory. A reader can be read once, so
            that another writer in between is an error; what is called for it can be read again.
        memory: What sorting may take, and the changes.
        feed: Name under which the store keeps the position `at`, if any.
        at: Position of this source.
        may_be_empty: Whether a source without rows removes all rows; else it is refused.
    """
    memory_bytes = parse_bytes(memory)
    own = {} if feed is None else {feed: at}

    def attempt(master: MasterData) -> Fed:
        if feed is not None and master.manifest.positions.get(feed, -1) >= at:
            return Fed("already", master.version, 0)
        refuse_given_order(master)
        with folder_beside(master.path) as folder:
            table = ReRead(master, source() if callable(source) else source, folder, memory_bytes)
            if not table.has_rows and master.rows and not may_be_empty:
                raise _empty(master)
            try:
                changes = table.changes()
            except TooManyChangesError:
                return _rebuilt(master, table, memory_bytes, own)
        if changes.num_rows == 0 and not own:
            return Fed("nothing", master.version, 0)
        changed = master.apply(changes, operation=OPERATION, positions=own)
        return Fed("applied" if changes.num_rows else "nothing", changed.version, len(changes))

    if isinstance(source, pa.RecordBatchReader):
        return attempt(MasterData.open(path))
    return until_not_stale(path, attempt)


def _rebuilt(master: MasterData, table: ReRead, memory_bytes: int, own: dict[str, int]) -> Fed:
    refuse_stale(master)
    told = master.manifest
    built = MasterData.build(
        table.rows(),
        key=master.key_columns,
        path=master.path,
        page_bytes=told.page_bytes,
        memory=memory_bytes,
    )
    # A build forgets positions. Killed before they are written again, the table is read once more and nothing differs.
    if positions := told.positions | own:
        none = built.schema.empty_table().select(list(built.key_columns))
        built = built.apply(none.append_column(OPERATION, pa.array([], pa.string())), positions=positions)
    return Fed("rebuilt", built.version, None)


def _empty(master: MasterData) -> SpecError:
    return SpecError(
        f"the source has no rows, and would remove all {format_count(master.rows)} of {master.path}",
        code="empty_source",
        next_move="look whether it was read while it was written; or say may_be_empty=True",
        rows=master.rows,
    )


def until_not_stale(path: str | Path, attempt: Callable[[MasterData], Fed]) -> Fed:
    """The outcome on the current version, tried again when another writer is at work or was quicker."""
    give_up_at = time.monotonic() + MOST_WAIT_SECONDS
    wait_seconds = _FIRST_WAIT_SECONDS
    while True:
        master = MasterData.open(path)
        try:
            return attempt(master)
        except StoreError as error:
            if not error.retryable or time.monotonic() > give_up_at:
                raise
        finally:
            master.close()
        time.sleep(wait_seconds)
        wait_seconds = min(2 * wait_seconds, 1.0)


__all__ = ["Fed", "apply_once", "re_read"]
