"""Prove that Spark works here: one session, a count, Parquet there and back, a Python worker.

Runs as `python -m tidemill.cli.spark_trial` in a process of its own, so that `doctor` can give up on it
and no session is left behind. Prints one line of JSON.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any


def main() -> None:
    from tidemill.spark.java import find_java
    from tidemill.spark.session import start_session

    java = find_java()
    spark = start_session("tidemill trial", cores=1)
    try:
        with tempfile.TemporaryDirectory(prefix="tidemill-trial-") as folder:
            spark.range(10).write.parquet(f"{folder}/ten")
            ten = spark.read.parquet(f"{folder}/ten")
            report = {
                "rows": spark.range(10).count(),
                "parquet_rows": ten.count(),
                "worker_python": ten.coalesce(1).mapInArrow(_name_python, "python string").collect()[0][0],
                "spark": spark.version,
                "java": java.version,
                "java_origin": java.origin,
                "java_home": os.environ["JAVA_HOME"],
            }
    finally:
        spark.stop()
    print(json.dumps(report))


def _name_python(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"python": [sys.executable]})


if __name__ == "__main__":
    main()
