"""Rows on their way out that another core puts together, while the join goes on."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidemill.join.parts.aside import Timed
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.putter import Asked
from tidemill.join.parts.service import Service


@dataclass(slots=True)
class Departure:
    """Rows that leave with one batch, each of them in full; nothing of it is seen before the batch is there."""

    put_out: Asked | Timed[pa.RecordBatch | None]
    rows: int
    matched: int
    output_bytes: int
    stream_rows: Callable[[], pa.RecordBatch] | None = None
    """Gives them, where they are hits."""
    slots: Int64s | None = None
    """Where they waited, if they did; nobody else may have these before they have left."""
    service: Service | None = None
    """What was read for them."""
    look: int = 0
    """The one that found them, where they are hits of rows that may be replaced."""


class Departures:
    """Those under way, in the order in which they were handed over."""

    def __init__(self) -> None:
        self._under_way: deque[Departure] = deque()

    def __bool__(self) -> bool:
        return bool(self._under_way)

    def add(self, departure: Departure) -> None:
        self._under_way.append(departure)

    @property
    def hits_rows(self) -> int:
        return sum(departure.rows for departure in self._under_way if departure.slots is None)

    @property
    def served_rows(self) -> int:
        """Of rows that waited."""
        return sum(departure.rows for departure in self._under_way if departure.slots is not None)

    def of_hits(self) -> Iterator[Departure]:
        """Those of hits; they stay."""
        return (departure for departure in self._under_way if departure.slots is None)

    def hits(self) -> list[pa.RecordBatch]:
        """Stream rows of departing hits."""
        return [departure.stream_rows() for departure in self._under_way if departure.stream_rows is not None]

    @property
    def slots(self) -> list[Int64s]:
        return [departure.slots for departure in self._under_way if departure.slots is not None]

    @property
    def services(self) -> list[Service]:
        return [departure.service for departure in self._under_way if departure.service is not None]

    @property
    def output_bytes(self) -> int:
        return sum(departure.output_bytes for departure in self._under_way)

    @property
    def hits_bytes(self) -> int:
        """Of output, for hits alone."""
        return sum(departure.output_bytes for departure in self._under_way if departure.slots is None)

    def finish(self) -> None:
        """Wait until all are ready; they stay."""
        for departure in self._under_way:
            departure.put_out.finish()

    def done(self) -> Iterator[Departure]:
        """Take those that have left, without waiting."""
        while self._under_way and self._under_way[0].put_out.is_done:
            yield self._under_way.popleft()

    def first(self) -> Iterator[Departure]:
        """Take the first, which may still be under way, if there is any."""
        if self._under_way:
            yield self._under_way.popleft()

    def all(self) -> Iterator[Departure]:
        """Take all."""
        while self._under_way:
            yield self._under_way.popleft()

    def until_none_served(self) -> Iterator[Departure]:
        """Take those up to the last one of rows that waited."""
        while self.slots:
            yield self._under_way.popleft()


__all__ = ["Departure", "Departures"]
