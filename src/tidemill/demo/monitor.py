"""What every activity of the demo has done so far, read from the outside twice a second."""

import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tidemill.core.units import format_bytes, format_count, format_ms
from tidemill.demo.places import Places
from tidemill.spark.memory_sample import MemorySampler
from tidemill.staging.reader import LogReader

RATE_WINDOW_S = 5.0


@dataclass
class Activity:
    """One line of the screen."""

    name: str
    rows: int = 0
    waiting: int = 0
    rejected: int | None = None
    remark: str = ""
    rows_per_s: float = 0.0
    _history: deque[tuple[float, int]] = field(default_factory=deque)

    def now(self, rows: int, waiting: int = 0, rejected: int | None = None, remark: str = "") -> None:
        self.rows, self.waiting, self.rejected, self.remark = rows, max(0, waiting), rejected, remark
        at = time.monotonic()
        self._history.append((at, rows))
        while at - self._history[0][0] > RATE_WINDOW_S and len(self._history) > 2:
            self._history.popleft()
        first_at, first_rows = self._history[0]
        self.rows_per_s = (rows - first_rows) / (at - first_at) if at > first_at else 0.0


class Monitor:
    """Reads stats files, the log's head and the batch reports; asks no part of the pipeline to do anything."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._log = LogReader(places.log)
        self._batches_read = 0
        self._days: dict[float, dict[str, Any]] = {}
        self.counts: dict[str, int] = {}
        self.hot_hits = 0
        self.disk_matches = 0
        self.last_batch: dict[str, Any] = {}
        self.batches = 0
        self.memory = MemorySampler(places.hot_rows)
        names = ("capture", "staging", "filter", "enrich", "aggregate", "load")
        self.activities = {name: Activity(name) for name in names}

    def look(self) -> None:
        """Bring every line up to date."""
        shop = self._all_days()
        staged = self._log.head().rows
        self._read_new_batches()
        held = self.memory.sample()
        loaded = self.counts.get("rows", 0)
        rejected = sum(
            n for name, n in self.counts.items() if name.startswith("rejected: ") and "unmatched" not in name
        )
        unmatched = sum(n for name, n in self.counts.items() if "unmatched" in name)
        lines = self.activities
        lines["capture"].now(
            shop["rows_acked"],
            shop["waiting_rows"],
            remark=f"{self.hook_us_per_row:.1f} us a row in the hook",
        )
        lines["staging"].now(
            staged, staged - loaded, remark=f"{format_count(self._log.head().entries)} blocks"
        )
        lines["filter"].now(loaded, rejected=rejected, remark="kept in sales_rejects")
        lines["enrich"].now(
            loaded, rejected=unmatched, remark=f"hot {self.hot_share:.0%}, {format_bytes(held)} held"
        )
        lines["aggregate"].now(self.counts.get("accepted", 0), remark="sums per supplier")
        lines["load"].now(loaded, remark=f"batch {self.last_batch.get('batch_id', '-')}, {self._freshness()}")

    @property
    def hook_us_per_row(self) -> float:
        """Microseconds that the hook took from the application for each row it sold."""
        shop = self._all_days()
        return 1e6 * shop["hook_seconds"] / shop["rows_submitted"] if shop["rows_submitted"] else 0.0

    @property
    def hot_share(self) -> float:
        """Share of matched rows that met their master row in memory."""
        matched = self.hot_hits + self.disk_matches
        return self.hot_hits / matched if matched else 0.0

    @property
    def loaded_entries(self) -> int:
        return int(self.last_batch.get("end_entry", 0))

    @property
    def staged_entries(self) -> int:
        return self._log.head().entries

    def _freshness(self) -> str:
        oldest_us = self.last_batch.get("oldest_committed_us")
        if not oldest_us:
            return "freshness -"
        return f"freshness {format_ms(self.last_batch['visible_at_ns'] / 1e6 - oldest_us / 1e3)} or better"

    def _all_days(self) -> dict[str, Any]:
        """The regulator's own counts, added up over the shop's openings."""
        if self._places.shop_stats.exists():
            published = json.loads(self._places.shop_stats.read_bytes())
            self._days[published["opened_at"]] = published
        days = list(self._days.values())
        sums = {n: sum(d[n] for d in days) for n in ("rows_submitted", "rows_acked", "hook_seconds")}
        return sums | {"waiting_rows": days[-1]["waiting_rows"] if days else 0}

    def _read_new_batches(self) -> None:
        if not self._places.batches.exists():
            return
        with self._places.batches.open("rb") as file:
            file.seek(self._batches_read)
            for line in file:
                if not line.endswith(b"}\n"):
                    break
                self._batches_read += len(line)
                self._add(json.loads(line))

    def _add(self, batch: dict[str, Any]) -> None:
        if "lookups" in batch:  # of the watch, which hears of a batch after it was delivered
            for lookup in batch["lookups"]:
                self.hot_hits += lookup["hot_hits"]
                self.disk_matches += lookup["disk_matches"]
            return
        if batch["end_entry"] <= self.loaded_entries:
            return  # a repeat after a restart: counted when it was delivered
        for name, value in batch["counts"].items():
            self.counts[name] = self.counts.get(name, 0) + value
        self.last_batch = batch
        self.batches += 1


__all__ = ["Activity", "Monitor"]
