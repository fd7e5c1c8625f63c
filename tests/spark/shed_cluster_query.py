"""Sheds and brings back rows on the cluster named, and writes what left; started by the test that is named for it."""

import json
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
from tests.spark.cluster_query import forget_work, wait_for_executors
from tests.spark.set_aside import Shop

import tidemill as tm
from tidemill.spark.session import start_session

KEYS, ROOM_ROWS, ROWS = 40, 50, 200


def run(cluster: str, folder: Path) -> None:
    settings = {"spark.master": cluster, "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    spark = start_session("shed", cores=2, scratch=folder / "scratch", low_latency=True, extra=settings)
    wait_for_executors(spark)
    products = pa.table({"product_id": range(KEYS), "name": [f"name {key}" for key in range(KEYS)]})
    shop = Shop(spark, folder, products, memory="12 MB")
    shop.shed = tm.Shed(folder / "lane", rows=ROOM_ROWS, memory="4 MB", quiet="1 h")
    shop.sell(number % KEYS for number in range(ROWS))
    shop.run()
    at_first = len(shop.joined)
    shop.until_all_came()
    application = spark.sparkContext.applicationId
    spark.stop()
    found = {"at_first": at_first, "left": sorted(Counter(shop.sales).items())}
    (folder / "found.json").write_text(json.dumps(found))
    forget_work(application)


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
