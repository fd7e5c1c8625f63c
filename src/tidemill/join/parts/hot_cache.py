"""What `tide` asks of the place where its hot rows lie, be it its own memory or one that processes share."""

from typing import Any, NamedTuple, Protocol

from tidemill.join.parts.kernels import Bools, Int64s, UInt32s
from tidemill.master.rows import UInt8s


class Met(NamedTuple):
    """What `meet` found of a piece of the stream."""

    known: Int64s
    """Numbers of the rows that leave."""
    at: Int64s
    """Where the match of each lies, -1 if there is none."""
    result: Int64s
    """As `sift` tells it."""


class HotCache(Protocol):
    """Rows of codes that are met often, and codes met often that do not exist."""

    rows: UInt8s

    @property
    def entries(self) -> int: ...

    @property
    def is_full(self) -> bool: ...

    @property
    def has_been_full(self) -> bool: ...

    @property
    def bytes_held(self) -> int: ...

    def probe(self, codes: Int64s, present: Bools) -> tuple[Int64s, Int64s, Int64s]:
        """Where the rows of each code begin in `rows`, how many there are (-1 for a miss), bytes that they take."""

    def meet(self, codes: Int64s, present: Bools, waits: tuple[Any, ...], most: int) -> Met:
        """Rows that hit, while those that miss wait, `most` of them at most: where a code has one master row or none.

        Args:
            codes: Of the rows.
            present: Where there is one.
            waits: First codes of regions, counters of the sketch, what is often, and the room's `ways_in`.
            most: Rows that can wait; what comes behind them was not looked at.
        """

    def admit(
        self, page: UInt8s, page_at: Int64s, start: Int64s, matches: Int64s, codes: Int64s, met: UInt32s
    ) -> None:
        """Keep rows that were read, if their codes were met often enough."""

    def renew(self) -> None:
        """Make room, if the owner of the memory does not see to that."""


__all__ = ["HotCache", "Met"]
