"""Alarms about lookups: raised once, silent while they last, raised again after they were over."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tidemill.core.errors import SpecError
from tidemill.spark.metrics_records import BatchMetrics, LookupMetrics, added_up

AlarmKind = Literal["unmatched", "empty_master", "stale_master", "read_error"]


@dataclass(frozen=True)
class Alarm:
    """What is wrong with a lookup, and since which batch."""

    kind: AlarmKind
    query_id: str
    lookup: str
    """Empty when the whole query is meant."""
    batch_id: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When alarms are raised; None means never."""

    unmatched_share: float | None = 0.5
    unmatched_over_batches: int = 5
    """The share is that of the last so many batches together."""
    master_age_seconds: float | None = None
    """Of the version that a batch used."""

    def __post_init__(self) -> None:
        share, age = self.unmatched_share, self.master_age_seconds
        is_good_share = share is None or 0 <= share <= 1
        is_good_age = age is None or age > 0
        if not (is_good_share and is_good_age and self.unmatched_over_batches > 0):
            raise SpecError(
                f"alarms cannot be raised by {self}",
                code="bad_limits",
                next_move="give a share of 0 to 1, one batch or more, and an age above zero",
            )


class Alarms:
    """Judges batch after batch.

    Args:
        limits: When to raise.
        now_unix_s: The clock.
    """

    def __init__(self, limits: Limits, now_unix_s: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._now_unix_s = now_unix_s
        self._recent: defaultdict[tuple[str, str, int], deque[LookupMetrics]] = defaultdict(
            lambda: deque(maxlen=limits.unmatched_over_batches)
        )
        self._raised: set[tuple[str, str, int, AlarmKind]] = set()

    def judge(self, batch: BatchMetrics) -> Iterator[Alarm]:
        """Alarms that begin with this batch."""
        for number, lookup in enumerate(batch.lookups):
            place = (batch.query_id, batch.observation, number)
            self._recent[place].append(lookup)
            for kind, text in self._judged(lookup, added_up(self._recent[place])).items():
                if text is None:
                    self._raised.discard((*place, kind))
                elif (*place, kind) not in self._raised:
                    self._raised.add((*place, kind))
                    yield Alarm(kind, batch.query_id, lookup.lookup, batch.batch_id, text)

    def forget(self, query_id: str) -> None:
        """A query has ended: what comes under its id is a new run."""
        self._raised = {place for place in self._raised if place[0] != query_id}
        for place in [place for place in self._recent if place[0] == query_id]:
            del self._recent[place]

    def _judged(self, lookup: LookupMetrics, recent: LookupMetrics) -> dict[AlarmKind, str | None]:
        limits, name = self._limits, lookup.lookup
        found: dict[AlarmKind, str | None] = dict.fromkeys(("unmatched", "empty_master", "stale_master"))
        share = limits.unmatched_share
        if lookup.master_rows == 0:
            found["empty_master"] = f"version {lookup.versions[-1]} of {name} has no rows: nothing can match"
        elif share is not None and recent.unmatched_share > share:
            found["unmatched"] = (
                f"{recent.unmatched:,} of {recent.rows_in:,} rows found nothing in {name}: "
                f"{recent.unmatched_share:.0%}, more than {share:.0%}"
            )
        age = self._now_unix_s() - lookup.master_created_unix_ms / 1000
        if limits.master_age_seconds is not None and age > limits.master_age_seconds:
            found["stale_master"] = (
                f"version {lookup.versions[-1]} of {name} is {age:,.0f} s old, more than "
                f"{limits.master_age_seconds:,.0f} s"
            )
        return found


__all__ = ["Alarm", "AlarmKind", "Alarms", "Limits"]
