"""The demo as its user sees it: live lines in a terminal, plain lines elsewhere, one summary at the end."""

import sys
import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tidemill.core.units import format_bytes, format_count, format_ms
from tidemill.demo.monitor import Activity

PLAIN_EVERY_S = 5.0


class Screen:
    """Prints to stderr when the summary is JSON, so that stdout stays a machine's."""

    def __init__(self, *, plain: bool, json_output: bool) -> None:
        self._console = Console(stderr=json_output, highlight=False)
        self._live: Live | None = None
        self._plain = plain or not self._console.is_terminal
        self._printed_at = 0.0

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def show(self, activities: Iterable[Activity]) -> None:
        """Draw the lines anew, or print them every few seconds where there is no terminal."""
        if self._plain:
            if time.monotonic() - self._printed_at >= PLAIN_EVERY_S:
                self._printed_at = time.monotonic()
                for line in activities:
                    self._console.print(_plain_line(line), soft_wrap=True)
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        self._live.update(_live_table(activities), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def summary(self, facts: dict[str, Any]) -> None:
        table = Table(title="What happened", title_justify="left", show_header=False)
        table.add_column(style="bold")
        table.add_column(justify="right")
        for name, value in _summary_rows(facts):
            table.add_row(name, value)
        self._console.print(table)


def _live_table(activities: Iterable[Activity]) -> Table:
    table = Table(expand=False)
    table.add_column("activity")
    for name in ("rows", "rows/s", "waiting", "rejected"):
        table.add_column(name, justify="right", min_width=9)
    table.add_column("", min_width=38)
    for a in activities:
        rejected = "" if a.rejected is None else format_count(a.rejected)
        table.add_row(
            a.name,
            format_count(a.rows),
            format_count(a.rows_per_s),
            format_count(a.waiting),
            rejected,
            a.remark,
        )
    return table


def _plain_line(a: Activity) -> str:
    rejected = "" if a.rejected is None else f"  rejected {format_count(a.rejected)}"
    return (
        f"{time.strftime('%H:%M:%S')} {a.name:<9} {format_count(a.rows):>10} rows {format_count(a.rows_per_s):>7}/s"
        f"  waiting {format_count(a.waiting):>6}{rejected}  {a.remark}"
    )


def _summary_rows(facts: dict[str, Any]) -> Iterable[tuple[str, str]]:
    yield "rows in (shop)", format_count(facts["rows_in"])
    yield "rows out (sales)", format_count(facts["rows_out"])
    for reason, count in facts["rejected_by_reason"].items():
        yield f"rejected: {reason}", format_count(count)
    yield "unmatched: no such product", format_count(facts["unmatched"])
    for name in ("lost", "doubled", "altered"):
        mark = "[green]" if facts[name] == 0 else "[bold red]"
        yield name, f"{mark}{format_count(facts[name])}[/]"
    yield (
        "freshness p50 / p99",
        f"{format_ms(facts['freshness_p50_ms'])} / {format_ms(facts['freshness_p99_ms'])}",
    )
    yield "hot-row hit share", f"{facts['hot_hit_share']:.1%}"
    budget, peak = facts["memory_budget_bytes"], facts["memory_peak_bytes"]
    yield "memory of the join", f"{format_bytes(peak)} of {format_bytes(budget)}"
    yield "time in the hook", f"{facts['hook_us_per_row']:.1f} us a row"
    yield "restarts of the driver", format_count(facts["driver_restarts"])


def stdout_json(facts: dict[str, Any]) -> None:
    """The summary as one JSON object on the last line."""
    import json

    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


__all__ = ["Screen", "stdout_json"]
