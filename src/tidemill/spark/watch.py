"""`tm.watch`: hears after every micro-batch what the joins of `tm.enrich` did, keeps the last, raises alarms."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)
from rich.table import Table

from tidemill.core.units import format_bytes, format_count, format_ms
from tidemill.spark.fate_counts import fates_of
from tidemill.spark.listening_end import stop_listening
from tidemill.spark.metrics import TASKS_FIELD
from tidemill.spark.metrics_records import BatchMetrics, LookupMetrics, added_up, lookups_of, shed_of
from tidemill.spark.progress import ProgressListener
from tidemill.spark.watch_alarms import Alarm, Alarms, Limits

_LOG = logging.getLogger("tidemill.watch")
_STORE_ERROR = "tidemill.core.errors.StoreError: "
KEPT_BATCHES = 100


class Watch(ProgressListener):
    """A listener of all queries of a session, in classic Spark and over Spark Connect.

    Args:
        on_batch: Called after each batch, once for each call of `enrich` in the query.
        on_alarm: Called when an alarm begins; a warning is logged as well (`tidemill.watch`).
        limits: When alarms begin.
        keep: So many of the last batches stay here.
    """

    def __init__(
        self,
        *,
        on_batch: Callable[[BatchMetrics], None] | None = None,
        on_alarm: Callable[[Alarm], None] | None = None,
        limits: Limits | None = None,
        keep: int = KEPT_BATCHES,
    ) -> None:
        self._on_batch = on_batch
        self._on_alarm = on_alarm
        self._alarms = Alarms(limits or Limits())
        self._last: deque[BatchMetrics] = deque(maxlen=keep)
        self._totals: dict[tuple[str, str, int], LookupMetrics] = {}
        self._spark: SparkSession | None = None
        # Spark calls from a thread of its own while the user's thread reads.
        self._lock = threading.Lock()

    @property
    def batches(self) -> list[BatchMetrics]:
        """The last of them, the newest at the end."""
        with self._lock:
            return list(self._last)

    @property
    def totals(self) -> list[LookupMetrics]:
        """All batches since the start of each lookup that was heard of."""
        with self._lock:
            return list(self._totals.values())

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        totals = [total.as_dict() for total in self.totals]
        return {"batches": [batch.as_dict() for batch in self.batches], "totals": totals}

    def table(self, last: int = 10) -> Table:
        """A row for each lookup of the last batches, and one for all of its batches, for `rich.print`."""
        columns = ("batch", "lookup", "version", "rows", "hot", "unmatched", "read", "time", "fates")
        table = Table(*columns, title="Batches of tm.enrich")
        for batch in self.batches[-last:]:
            for lookup in batch.lookups:
                table.add_row(str(batch.batch_id), *_cells(lookup), format_ms(batch.batch_ms), _fates(batch))
        table.add_section()
        for total in self.totals:
            table.add_row("all", *_cells(total), "", "")
        return table

    def listen_to(self, spark: SparkSession) -> "Watch":
        """Begin to hear of the queries of a session."""
        spark.streams.addListener(self)
        self._spark = spark
        return self

    def stop(self) -> None:
        """Hear no more; what was heard stays."""
        if self._spark is not None:
            stop_listening(self._spark, self)
            self._spark = None

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # What Spark calls.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing to tell yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """No batch, nothing to tell."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Take in what the batch's tasks told."""
        for batch in _batches_of(event.progress):
            with self._lock:
                self._add(batch)
                alarms = list(self._alarms.judge(batch))
            _call(self._on_batch, batch)
            for alarm in alarms:
                self._raise(alarm)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Raise an alarm if master data could not be read."""
        query_id, failure = str(event.id), event.exception or ""
        with self._lock:
            self._alarms.forget(query_id)
            last = max((batch.batch_id for batch in self._last if batch.query_id == query_id), default=-1)
        if _STORE_ERROR in failure:
            text = failure.partition(_STORE_ERROR)[2].partition("\n")[0]
            self._raise(Alarm("read_error", query_id, "", last + 1, text.strip()))

    def _add(self, batch: BatchMetrics) -> None:
        self._last.append(batch)
        for number, lookup in enumerate(batch.lookups):
            place = (batch.query_id, batch.observation, number)
            before = self._totals.get(place)
            self._totals[place] = lookup if before is None else added_up([before, lookup])

    def _raise(self, alarm: Alarm) -> None:
        _LOG.warning("%s: %s (query %s, batch %d)", alarm.kind, alarm.text, alarm.query_id, alarm.batch_id)
        _call(self._on_alarm, alarm)


def watch(
    spark: SparkSession,
    *,
    on_batch: Callable[[BatchMetrics], None] | None = None,
    on_alarm: Callable[[Alarm], None] | None = None,
    limits: Limits | None = None,
    keep: int = KEPT_BATCHES,
) -> Watch:
    """A watch that hears of every streaming query of the session until it is stopped.

    Args:
        spark: Session, classic or over Spark Connect.
        on_batch: Called after each batch, once for each call of `enrich` in the query.
        on_alarm: Called when an alarm begins; a warning is logged as well (`tidemill.watch`).
        limits: When alarms begin.
        keep: So many of the last batches stay in `batches`.
    """
    return Watch(on_batch=on_batch, on_alarm=on_alarm, limits=limits, keep=keep).listen_to(spark)


def _batches_of(progress: StreamingQueryProgress) -> list[BatchMetrics]:
    told = {name: row.asDict() for name, row in progress.observedMetrics.items()}
    return [
        BatchMetrics(
            query_id=str(progress.id),
            query_name=progress.name,
            observation=name,
            batch_id=progress.batchId,
            started_at=progress.timestamp,
            batch_ms=progress.batchDuration,
            lookups=lookups,
            shed=shed_of(values),
            fates=fates_of(values),
        )
        for name, values in told.items()
        if TASKS_FIELD in values and (lookups := lookups_of(values))
    ]


def _cells(lookup: LookupMetrics) -> list[str]:
    first, last = lookup.versions[0], lookup.versions[-1]
    return [
        lookup.lookup,
        str(last) if first == last else f"{first}-{last}",
        format_count(lookup.rows_in),
        f"{lookup.hot_share:.0%}",
        f"{lookup.unmatched_share:.0%}",
        f"{format_count(lookup.pages_read)} pages, {format_bytes(lookup.bytes_read)}",
    ]


def _fates(batch: BatchMetrics) -> str:
    return ", ".join(f"{format_count(rows)} {fate}" for fate, rows in (batch.fates or {}).items())


def _call(callback: Callable[[Any], None] | None, told: object) -> None:
    if callback is None:
        return
    try:
        callback(told)
    except Exception:  # noqa: BLE001 - Spark would drop it, and the calls that come after it
        _LOG.exception("a callback of tm.watch failed on %s", told)


__all__ = ["KEPT_BATCHES", "Watch", "watch"]
