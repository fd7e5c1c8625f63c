"""What `tide` asks of the place where its hot rows lie, be it its own memory or one that processes share."""

from typing import Protocol

from tidemill.join.parts.kernels import Bools, Int64s, UInt32s
from tidemill.master.rows import UInt8s


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

    def admit(
        self, page: UInt8s, page_at: Int64s, start: Int64s, matches: Int64s, codes: Int64s, met: UInt32s
    ) -> None:
        """Keep rows that were read, if their codes were met often enough."""

    def hits_per_byte(self) -> float:
        """What a byte more would save: hits for each code probed."""

    def renew(self) -> None:
        """Make room, if the owner of the memory does not see to that."""


__all__ = ["HotCache"]
