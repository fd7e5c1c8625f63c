"""What the loader asks of a warehouse; one file a backend."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa

from tidemill.load.tables import TableSpec


class Transaction(Protocol):
    """What may be done until COMMIT; all of it becomes visible at once or not at all."""

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Rows of one statement of the loader's own, values bound as $1, $2, …"""

    def check_or_create(self, table: TableSpec) -> None:
        """Create the table, or refuse (409) one that is there with other columns or keys."""

    def append(self, table: TableSpec, rows: pa.Table) -> None:
        """Insert the rows as they are."""

    def add(self, table: TableSpec, rows: pa.Table) -> None:
        """Add signed deltas to the groups that the keys name."""


class Warehouse(Protocol):
    """One writer at a time, capped readers; errors are `LoadError` with an HTTP `status`.

    An error with code "warehouse_down" means that the handle is dead until `reopen`.
    """

    def transaction(self) -> AbstractContextManager[Transaction]:
        """A transaction that commits on leaving and rolls back on an exception."""

    def read(self, sql: str, *, max_rows: int, timeout_seconds: float) -> pa.Table:
        """At most `max_rows` rows of one statement that cannot write."""

    def reopen(self) -> None:
        """A live handle in place of a dead one."""

    def close(self) -> None:
        """Everything on disk, nothing held."""


__all__ = ["Transaction", "Warehouse"]
