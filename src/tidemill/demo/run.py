"""Runs the demo: everything up, two days of sales, everything down, one verdict."""

import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tidemill.core.errors import CheckError, SpecError
from tidemill.core.units import format_bytes, format_count, parse_bytes
from tidemill.demo.check import Verdict, check
from tidemill.demo.parts import Parts
from tidemill.demo.pipeline import check_memory
from tidemill.demo.places import Places
from tidemill.demo.products import build_products
from tidemill.demo.screen import Screen, stdout_json
from tidemill.spark.java import find_java

WARM_UP_ROWS = (100, 1500)
"""Two short days before the one that counts: the first batch loads and compiles, some more make Java warm."""
WARM_UP_RATE = 400.0
DEFAULT_RATE, DEFAULT_SECONDS = 1000.0, 40.0
NEEDED_DISK_BYTES = 2 * 10**9


@dataclass(frozen=True)
class DemoOptions:
    """What the user asked for; None leaves it to the demo."""

    rows: int | None
    rate: float | None
    seconds: float | None
    data: Path
    memory: str
    seed: int
    fresh: bool
    json_output: bool
    plain: bool


def run_demo(options: DemoOptions) -> None:
    """Run, check and sum up; a `CheckError` if a single row is lost, doubled or altered."""
    budget_bytes = parse_bytes(options.memory)
    java = find_java()
    places = prepare_folder(options.data, fresh=options.fresh)
    products = build_products(places.products)
    check_memory(products, budget_bytes)
    screen = Screen(plain=options.plain, json_output=options.json_output)
    screen.say(f"Tidemill demo in {places.data} (Java {java.version} by {java.origin})")
    screen.say(f"master data: {format_count(products.rows)} products of {products.row_bytes} B")
    parts = Parts(places, options.memory, screen)
    with _interruptible():
        try:
            parts.start()
            warm_up_rows = warm_up(parts, options.seed)
            parts.open_shop(**opening_hours(options))
            parts.sell_out()
            parts.drain()
        finally:
            screen.close()
            parts.end()
    screen.say("comparing source and warehouse row by row")
    verdict = check(places, warm_up_rows)
    facts = summary(parts, verdict, budget_bytes, warm_up_rows)
    screen.summary(facts)
    say_where(screen, options.data, places)
    if options.json_output:
        stdout_json(facts)
    if not verdict.holds:
        raise CheckError(
            f"{verdict.lost} rows lost, {verdict.doubled} doubled, {verdict.altered} altered",
            code="rows_differ",
            next_move=f"keep {places.data} and report it: this must never happen",
        )


def prepare_folder(data: Path, *, fresh: bool) -> Places:
    """An empty folder of ours, or the one of an earlier demo to go on with."""
    places = Places(data.resolve())
    if places.data.exists() and not places.data.is_dir():
        raise SpecError(f"{data} is a file", code="no_folder", next_move="give a folder with --data")
    if places.data.exists() and any(places.data.iterdir()) and not places.made_here.exists():
        raise SpecError(
            f"{data} holds files that no demo made",
            code="folder_in_use",
            next_move="give an empty or new folder with --data",
            path=str(data),
        )
    try:
        if fresh and places.data.exists():
            shutil.rmtree(places.data)
        places.data.mkdir(parents=True, exist_ok=True)
        places.made_here.touch()
    except OSError as error:
        raise SpecError(
            f"cannot write to {data}: {error.strerror}",
            code="folder_unwritable",
            next_move="give another --data",
        ) from error
    free = shutil.disk_usage(places.data).free
    if free < NEEDED_DISK_BYTES:
        raise SpecError(
            f"{format_bytes(free)} are free at {data}, the demo may need {format_bytes(NEEDED_DISK_BYTES)}",
            code="disk_full",
            next_move="free some space or give another --data",
        )
    return places


def warm_up(parts: Parts, seed: int) -> int:
    """Sell a little and wait until it is visible; the number of the last sale before the day that counts."""
    for rows in WARM_UP_ROWS:
        parts.open_shop(rate=WARM_UP_RATE, rows=rows, seed=seed)
        parts.sell_out()
        parts.drain()
    with closing(sqlite3.connect(parts.places.database)) as shop:
        return int(shop.execute("SELECT max(id) FROM sales").fetchone()[0])


def opening_hours(options: DemoOptions) -> dict[str, Any]:
    """Rate, and rows or seconds, whichever ends the day first."""
    hours: dict[str, Any] = {"rate": options.rate or DEFAULT_RATE, "seed": options.seed + 1}
    if options.rows is not None:
        hours["rows"] = options.rows
    if options.seconds is not None or options.rows is None:
        hours["seconds"] = options.seconds or DEFAULT_SECONDS
    return hours


def summary(parts: Parts, verdict: Verdict, budget_bytes: int, warm_up_rows: int) -> dict[str, Any]:
    """The facts as printed and as JSON."""
    monitor = parts.monitor
    return {
        **verdict.__dict__,
        "warm_up_rows": warm_up_rows,
        "hot_hit_share": round(monitor.hot_share, 4),
        "memory_budget_bytes": budget_bytes,
        "memory_peak_bytes": monitor.memory.peak_bytes,
        "hook_us_per_row": round(monitor.hook_us_per_row, 2),
        "batches": monitor.batches,
        "driver_restarts": parts.driver.starts - 1,
        "data": str(parts.places.data),
    }


def say_where(screen: Screen, data: Path, places: Places) -> None:
    folder = "" if data == Path("tidemill-demo") else f" --data {data}"
    query = "SELECT supplier_id, sales, total FROM supplier_totals ORDER BY total DESC LIMIT 5"
    screen.say(f"data: {places.warehouse}")
    screen.say(f'next: .venv/bin/tidemill sql "{query}"{folder}')


@contextmanager
def _interruptible() -> Iterator[None]:
    """Make SIGTERM end the demo as Ctrl-C does."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


__all__ = ["DemoOptions", "run_demo"]
