"""What every semi-stream join can do, and what it reports after each step.

```
room() → offer(batch) → step() → step() → … → room()
```
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from tidemill.core.errors import SpecError
from tidemill.join.output import OutputPlan


@dataclass(frozen=True)
class StepReport:
    """One step: the output that left, the fate of the rows that finished, and what it cost.

    Over any run `rows_in` = `emitted_rows` + `dropped_rows` + rows still pending, and
    `emitted_rows` + `dropped_rows` = `hot_hits` + `disk_matches` + `unmatched`.
    """

    outputs: tuple[pa.RecordBatch, ...] = ()
    rows_in: int = 0
    """Stream rows taken since the step before."""
    emitted_rows: int = 0
    """Stream rows that finished with output, however many output rows each gave."""
    dropped_rows: int = 0
    """Stream rows that finished without: unmatched ones of inner and semi, matched ones of anti."""
    waited_rows: int = 0
    """Stream rows that began to wait for a read."""
    hot_hits: int = 0
    disk_matches: int = 0
    unmatched: int = 0
    pages_read: int = 0
    bytes_read: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By phase."""
    held_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes in use at the end of the step, by the name of the reservation that covers them."""

    @property
    def output_rows(self) -> int:
        return sum(batch.num_rows for batch in self.outputs)


class SemiStreamJoin(ABC):
    """A join that takes stream rows, does bounded steps and gives finished rows back."""

    name: ClassVar[str]

    plan: OutputPlan

    @property
    def output_schema(self) -> pa.Schema:
        return self.plan.output_schema

    @abstractmethod
    def room(self, row_bytes: int | None = None) -> int:
        """Rows that `offer` would take now, of this size or of the size expected; 0 is no error."""

    @abstractmethod
    def offer(self, batch: pa.RecordBatch) -> None:
        """Take the rows; at most `room()` of them."""

    @abstractmethod
    def step(self) -> StepReport:
        """Do one bounded piece of work; an empty report when there is none."""

    @property
    @abstractmethod
    def pending_rows(self) -> int:
        """Rows taken whose output has not left in full."""

    @property
    def hot_changes(self) -> int:
        """Hot rows put in or thrown out so far; 0 for joins that have none."""
        return 0

    @abstractmethod
    def snapshot(self) -> bytes:
        """Everything that waits, for `restore`; taken between steps."""

    @abstractmethod
    def restore(self, snapshot: bytes) -> None:
        """Replace what waits by what waited when the snapshot was taken."""

    def drain(self) -> Iterator[StepReport]:
        """Reports of the steps that finish everything that waits."""
        while self.pending_rows:
            yield self.step()

    def _refuse_beyond_room(self, batch: pa.RecordBatch, room: int) -> None:
        if batch.num_rows > room:
            raise SpecError(
                f"{batch.num_rows} rows were offered to the {self.name} join, which has room for {room}",
                code="no_room",
                next_move="offer at most room() rows, then step",
                offered=batch.num_rows,
                room=room,
            )


__all__ = ["SemiStreamJoin", "StepReport"]
