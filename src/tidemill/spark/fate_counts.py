"""How many rows of a batch have which fate, counted in the tasks as their rows leave: Spark's aggregates see none for it.

A task knows which rows met nothing and since when they wait, not the batch's time, from which deadlines are told. So it
tells rows by the time since which they wait, and Spark adds the batch's time to what it tells.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.spark.late import LAST_FATES, PARKED_AT_COLUMN
from tidemill.spark.metrics import tasks_told

if TYPE_CHECKING:
    from tidemill.spark.parking import Parking


@dataclass(frozen=True)
class FateRules:
    """By which the fate of a row is told when it leaves the join."""

    matched_as: str | None = None
    """Column that is true where a master row matched; None where every row that was not shed counts as joined."""
    keys: tuple[str, ...] = ()
    last: str = "rejected"
    """What a row without a match is in the end."""
    deadline_ms: int | None = None
    """How long it waits before that; None where rows do not wait."""


def fate_rules(matched_as: str | None, on: str | Sequence[str], parking: "Parking | None") -> FateRules:
    """The rules of a call with late="reject" or late="park"; without a column of matches, of one that sheds alone."""
    keys = (on,) if isinstance(on, str) else tuple(on)
    if parking is None:
        return FateRules(matched_as, keys)
    return FateRules(matched_as, keys, LAST_FATES[parking.then], parking.deadline_ms)


@dataclass
class FateCounts:
    """Rows of one task that left the join."""

    rules: FateRules
    _joined: int = 0
    _last: int = 0
    """Rows for which there is no waiting."""
    _fresh: int = 0
    """Rows that would wait from now on."""
    _since_ms: Counter[int] = field(default_factory=Counter)
    """Rows that have waited, by the time since when."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Count rows that leave."""
        if self.rules.matched_as is None:
            self._joined += rows.num_rows
            return
        matched = rows.column(self.rules.matched_as)
        found = int(pc.sum(matched).as_py() or 0)
        self._joined += found
        if found == rows.num_rows:
            return
        if self.rules.deadline_ms is None:
            self._last += rows.num_rows - found
            return
        names = [name for name in (*self.rules.keys, PARKED_AT_COLUMN) if name in rows.schema.names]
        others = rows.select(names).filter(pc.invert(matched))
        has_key = reduce(pc.and_, [pc.is_valid(others.column(name)) for name in self.rules.keys])
        waiting = others.filter(has_key)
        self._last += others.num_rows - waiting.num_rows
        if PARKED_AT_COLUMN not in names:
            self._fresh += waiting.num_rows
            return
        since = waiting.column(PARKED_AT_COLUMN)
        self._fresh += since.null_count
        # Whole milliseconds below, as Spark's `unix_millis`.
        floor = pc.floor_temporal(since.drop_null(), unit="millisecond")
        in_ms = floor.cast(pa.timestamp("ms", since.type.tz)).cast(pa.int64())
        values, counts = np.unique(in_ms.to_numpy(), return_counts=True)
        self._since_ms.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    @property
    def told(self) -> dict[str, Any]:
        """What the driver must know to tell fates."""
        return {
            "joined": self._joined,
            "last": self._last,
            "fresh": self._fresh,
            "since_ms": sorted(self._since_ms.items()),
            "last_is": self.rules.last if self.rules.matched_as is not None else None,
            "deadline_ms": self.rules.deadline_ms,
        }


def fates_of(observed: Mapping[str, Any]) -> dict[str, int] | None:
    """Rows by fate in an observed call of `enrich`, every fate that can be; None where it asked for none.

    Args:
        observed: What Spark gives: `observation.get` of a batch, or `observedMetrics[name].asDict()` of a stream.
    """
    fates: dict[str, int] = {}
    for task in tasks_told(observed):
        if "fates" not in task:
            return None
        for fate, rows in _of_task(task).items():
            fates[fate] = fates.get(fate, 0) + rows
    return fates or None


def _of_task(task: Mapping[str, Any]) -> dict[str, int]:
    told = task["fates"]
    fates = {"joined": told["joined"]}
    if told["last_is"] is not None:
        fates[told["last_is"]] = told["last"]
    if told["deadline_ms"] is not None:
        since_ms = [*told["since_ms"], (task["now_ms"], told["fresh"])]
        over_at_ms = task["now_ms"] - told["deadline_ms"]
        over = sum(rows for ms, rows in since_ms if ms <= over_at_ms)
        fates[told["last_is"]] += over
        fates["parked"] = sum(rows for _, rows in since_ms) - over
    if "shed" in task:
        fates["shed"] = task["shed"]["shed_rows"]
    return fates


__all__ = ["FateCounts", "FateRules", "fate_rules", "fates_of"]
