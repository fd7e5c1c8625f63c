"""The legacy shop: sells products, one durable SQLite transaction a sale or a few.

It knows nothing of warehouses. The one line that differs from its life before is in `main`: the connection comes
from the capture hook instead of from `sqlite3.connect`.
"""

import argparse
import json
import random
import signal
import sqlite3
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType

import numpy as np
import pyarrow as pa

from tidemill.capture.hooks.sqlite import SqliteCapture
from tidemill.capture.regulator import SourceRegulator
from tidemill.core.files import write_atomically
from tidemill.testing.zipf import Zipf

SALES = """
CREATE TABLE IF NOT EXISTS sales (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  product_id INTEGER,
  store_id INTEGER NOT NULL,
  quantity INTEGER NOT NULL,
  sold_at INTEGER NOT NULL  -- microseconds since 1970
)
"""
SALES_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("product_id", pa.int64()),
        ("store_id", pa.int32()),
        ("quantity", pa.int32()),
        ("sold_at", pa.timestamp("us", tz="UTC")),
    ]
)
STORES = 40
BURSTS = (0.6,) * 7 + (1.4,) * 2 + (3.0,)
"""Multiples of the mean rate that ten seconds take in some order: mean 1.0, peak three times it."""
NULL_PRODUCT, ZERO_QUANTITY, UNKNOWN_PRODUCT = 0.01, 0.01, 0.005
"""Shares of bad rows, as a careless cash desk makes them."""
Sale = tuple[int | None, int, int]


class Till:
    """Sales as customers make them: few products sell most, some rows are bad."""

    def __init__(self, products: int, seed: int) -> None:
        self._zipf = Zipf(products, exponent=1.0, seed=seed)
        self._random = np.random.default_rng(seed)
        self._products = products
        self._ready: list[Sale] = []

    def next(self, count: int) -> list[Sale]:
        while len(self._ready) < count:
            self._ready += self._draw(10_000)
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

    def _draw(self, count: int) -> list[Sale]:
        # Popularity must not follow the key, or neighbouring hot keys would share their pages.
        ranks = self._zipf.draw(count)
        keys = (ranks * 7_368_787 + 12_345) % self._products
        fate = self._random.random(count)
        keys = np.where(fate < UNKNOWN_PRODUCT, self._products + ranks, keys)
        quantity = self._random.integers(1, 10, count)
        quantity[(fate >= UNKNOWN_PRODUCT) & (fate < UNKNOWN_PRODUCT + ZERO_QUANTITY)] = 0
        missing = fate > 1 - NULL_PRODUCT
        stores = self._random.integers(1, STORES + 1, count)
        return [
            (None if none else key, store, pieces)
            for key, store, pieces, none in zip(
                keys.tolist(), stores.tolist(), quantity.tolist(), missing.tolist(), strict=True
            )
        ]


def sell(shop: sqlite3.Connection, sales: list[Sale]) -> None:
    """One customer: a sale or a few, durable when this returns."""
    now = time.time_ns() // 1000
    with shop:
        shop.executemany(
            "INSERT INTO sales (product_id, store_id, quantity, sold_at) VALUES (?, ?, ?, ?)",
            [(*sale, now) for sale in sales],
        )


def open_hours(
    shop: sqlite3.Connection, till: Till, rate: float, rows: int, seconds: float, seed: int
) -> int:
    """Sell until `rows` are sold or `seconds` are over; the rows sold."""
    dice = random.Random(seed)  # noqa: S311 - a shop's customers, not a secret
    started = last = time.monotonic()
    sold, due, multiples = 0, 0.0, list[float]()
    while sold < rows and last - started < seconds and not _closing.is_set():
        now = time.monotonic()
        while len(multiples) <= now - started:
            multiples += dice.sample(BURSTS, len(BURSTS))
        due += (now - last) * rate * multiples[int(now - started)]
        last = now
        if due < 1:
            time.sleep(min(0.005, 1 / rate))
            continue
        while due >= 1 and sold < rows and not _closing.is_set():
            basket = till.next(min(dice.randint(1, 5), max(1, int(due)), rows - sold))
            sell(shop, basket)
            sold += len(basket)
            due -= len(basket)
    return sold


_closing = threading.Event()
_OPENED_AT = time.time()


def _close_shop(_signal: int, _frame: FrameType | None) -> None:
    _closing.set()


def main() -> None:
    parser = argparse.ArgumentParser(description="A legacy shop application on SQLite.")
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--receiver", required=True, help="host:port of the staging receiver")
    parser.add_argument("--spool", type=Path, required=True)
    parser.add_argument("--stats", type=Path, required=True)
    parser.add_argument("--products", type=int, required=True)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--rows", type=int, default=2**62)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _close_shop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the demo itself closes the shop

    _make_database(options.database)
    regulator = SourceRegulator(
        "shop", SqliteCapture.schema_for(SALES_SCHEMA), options.receiver, spool_dir=options.spool
    )
    capture = SqliteCapture(regulator, table="sales", schema=SALES_SCHEMA, position="id")
    shop = capture.connect(options.database)  # was: sqlite3.connect(options.database)
    shop.execute("PRAGMA synchronous=FULL")
    publisher = threading.Thread(target=_publish_stats, args=(capture, regulator, options.stats), daemon=True)
    publisher.start()
    open_hours(
        shop, Till(options.products, options.seed), options.rate, options.rows, options.seconds, options.seed
    )
    shop.close()
    handed_over = regulator.flush(timeout_s=60)
    _closing.set()
    publisher.join()
    _write_stats(capture, regulator, options.stats)
    capture.close()
    if not handed_over:
        sys.exit("staging did not take all rows within 60 s; they are safe and leave at the next start")


def _make_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(SALES)
    connection.close()


def _publish_stats(capture: SqliteCapture, regulator: SourceRegulator, path: Path) -> None:
    while not _closing.wait(0.5):
        _write_stats(capture, regulator, path)


def _write_stats(capture: SqliteCapture, regulator: SourceRegulator, path: Path) -> None:
    told = asdict(regulator.stats()) | asdict(capture.stats()) | {"opened_at": _OPENED_AT}
    write_atomically(path, json.dumps(told).encode())


if __name__ == "__main__":
    main()
