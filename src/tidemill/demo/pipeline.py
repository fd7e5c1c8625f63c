"""The shop's flow on Spark: log -> filter -> enrich -> total -> facts, rejects and sums per supplier.

Run as a process of its own, the driver. It can be killed at any moment and started again.
"""

import argparse
import json
import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import col

from tidemill.core.errors import TidemillError
from tidemill.core.files import write_atomically
from tidemill.demo.places import PIPELINE, Places
from tidemill.flow.branches import REASON_COLUMN, Rows, Sums, count_fates
from tidemill.flow.filters import reject
from tidemill.load.client import LoaderClient, read_token
from tidemill.master import MasterData
from tidemill.spark.checkpoint import open_pipeline
from tidemill.spark.columns import COMMITTED_COLUMN, ENTRY_COLUMN
from tidemill.spark.enrich import enrich
from tidemill.spark.lookup import Lookup, planned
from tidemill.spark.metrics_records import BatchMetrics
from tidemill.spark.refresh import Refresh
from tidemill.spark.session import start_session
from tidemill.spark.sinks import BatchReport, deliver, tables_of
from tidemill.spark.sources import read_log
from tidemill.spark.watch import watch
from tidemill.spark.worker_join import check_budget
from tidemill.staging.retention import mark_consumed

MONEY = pa.decimal128(18, 2)
TEXT = pa.string()
INSTANT = pa.timestamp("us", tz="UTC")
UNMATCHED = "unmatched: no such product"
MAX_ROWS_PER_BATCH = 20_000
BATCHES_BETWEEN_MARKS = 50
"""How often the log is told what it may let go."""

SALE_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("id", pa.int64()),
    ("product_id", pa.int64()),
    ("store_id", pa.int32()),
    ("quantity", pa.int32()),
    ("sold_at", INSTANT),
]
LINEAGE: list[tuple[str, pa.DataType]] = [("committed_at", INSTANT), ("log_entry", pa.int64())]
LINEAGE_NAMES = {"committed_at": COMMITTED_COLUMN, "log_entry": ENTRY_COLUMN}
SUM_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("supplier_id", pa.int32()),
    ("sales", pa.int64()),
    ("pieces", pa.int64()),
    ("total", MONEY),
]
PRODUCT_COLUMNS = ["name", "supplier_id", "supplier", "category", "unit_price"]

SALES = Rows(
    "sales",
    pa.schema(
        [
            *SALE_COLUMNS,
            ("name", TEXT),
            ("supplier_id", pa.int32()),
            ("supplier", TEXT),
            ("category", TEXT),
            ("unit_price", pa.decimal128(10, 2)),
            ("total", MONEY),
            *LINEAGE,
        ]
    ),
    rename=LINEAGE_NAMES,
)
REJECTS = Rows(
    "sales_rejects",
    pa.schema([*SALE_COLUMNS, ("reason", TEXT), *LINEAGE]),
    which="rejected",
    rename=LINEAGE_NAMES | {"reason": REASON_COLUMN},
)
PER_SUPPLIER = Sums(
    "supplier_totals",
    pa.schema(SUM_COLUMNS),
    keys=("supplier_id",),
    sums={"sales": None, "pieces": "quantity", "total": "total"},
)
BRANCHES = (SALES, REJECTS, PER_SUPPLIER)


def shop_flow(sales: DataFrame, products: MasterData, memory: str, hot_rows: Path) -> DataFrame:
    """Sales judged, enriched with their product and priced; every row leaves, rejected ones with their reason."""
    judged = reject(
        sales,
        {
            "product_id is NULL": col("product_id").isNull(),
            "quantity is not positive": col("quantity") <= 0,
        },
    )
    enriched = enrich(
        judged,
        products,
        on="product_id",
        how="left",
        columns=PRODUCT_COLUMNS,
        memory=memory,
        matched_as="_matched",
        hot_rows=hot_rows,
    )
    known = reject(enriched, {UNMATCHED: ~col("_matched")})
    return known.withColumn("total", (col("quantity") * col("unit_price")).cast("decimal(18,2)"))


def check_memory(products: MasterData, memory_bytes: int) -> None:
    """Refuse a budget that the flow's join cannot work with, before anything starts."""
    rows = pa.schema([*SALE_COLUMNS, *LINEAGE, (REASON_COLUMN, TEXT)])
    lookup = Lookup(master=products, on="product_id", columns=PRODUCT_COLUMNS, matched_as="_matched")
    told = planned(lookup, rows, algorithm="auto", refresh=Refresh.parse("batch"), memory_bytes=memory_bytes)
    check_budget(products, told, workers=os.cpu_count() or 1)


def main() -> int:
    parser = argparse.ArgumentParser(description="The Spark driver of the demo.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--memory", required=True)
    options = parser.parse_args()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the demo itself ends the driver
    try:
        run(Places(options.data), options.memory, stopping)
    except TidemillError as error:
        print(f"tidemill: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def run(places: Places, memory: str, stopping: threading.Event) -> None:
    """Stream until told to stop; an error of the query ends the process, whoever started it starts it again."""
    client = LoaderClient(
        json.loads(places.loader_ready.read_bytes())["url"], read_token(places.loader_token)
    )
    resumed = open_pipeline(client, PIPELINE, places.checkpoint, tables_of(BRANCHES))
    spark = start_session("tidemill demo", scratch=places.scratch, low_latency=True)
    sales = read_log(
        spark, places.log, max_rows_per_batch=MAX_ROWS_PER_BATCH, start_entry=resumed.start_entry
    )
    rows = shop_flow(sales, MasterData.open(places.products), memory, places.hot_rows)
    with places.batches.open("ab", buffering=0) as lines:

        def note(report: BatchReport) -> None:
            lines.write((json.dumps(asdict(report)) + "\n").encode())
            if report.batch_id % BATCHES_BETWEEN_MARKS == 0:
                # Up to its start, not its end: Spark may run the last batch again.
                mark_consumed(places.log, report.start_entry)

        def note_lookups(batch: BatchMetrics) -> None:
            lines.write((json.dumps(batch.as_dict()) + "\n").encode())

        watch(spark, on_batch=note_lookups)
        query = deliver(rows, BRANCHES, client=client, resumed=resumed, count=count_fates, on_batch=note)
        write_atomically(places.driver_ready, json.dumps({"pid": os.getpid()}).encode())
        while query.isActive and not stopping.is_set():
            stopping.wait(0.2)
        query.stop()
        failure = query.exception()
        spark.stop()
        if failure is not None and not stopping.is_set():
            raise failure


if __name__ == "__main__":
    sys.exit(main())
