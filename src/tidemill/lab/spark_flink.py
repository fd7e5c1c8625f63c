"""`flink-lookup`: Flink SQL's lookup join on PostgreSQL with a partial cache, the peer outside Spark.

Flink has no micro-batches, so its rate is measured once and stands for every size of batch; `batch_ms_p50` stays empty.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema

from tidemill.core.errors import InternalError
from tidemill.lab import flink_job
from tidemill.lab.flink_setup import Flink, flink
from tidemill.lab.postgres_server import free_port
from tidemill.lab.rows import OUTPUT_SCHEMA
from tidemill.lab.spark_check import expected, summed
from tidemill.lab.spark_data import Lot, SparkData, check_lot, measured_lot
from tidemill.lab.spark_memory import Watch, files_below, proportional_bytes, resident_bytes
from tidemill.lab.spark_postgres import master_table
from tidemill.spark.session import start_session

WARM_UP_FACTOR = 2.0
"""Times the seconds of measuring: the cache fills row by row."""
SERVER_BYTES = 32 * 2**20
"""PostgreSQL's own cache; the budget is Flink's."""
MOST_CHECKED_ROWS = 200_000


def run_flink(
    data: SparkData, batches: list[int], memory_bytes: int, seconds: float, cores: int, scratch: Path,
) -> dict[str, Any]:  # fmt: skip
    """Rate, memory and whether the rows are right."""
    place = flink(data.folder / "flink")
    row_bytes = data.master_bytes() // data.master_rows
    checked = max((rows for rows in batches if rows <= MOST_CHECKED_ROWS), default=min(batches))
    with master_table(data, SERVER_BYTES) as uri:
        asked: dict[str, Any] = {
            "jars": place.jars,
            "cores": cores,
            "port": free_port(),
            "jdbc": f"jdbc:{uri.replace('tidemill@', '')}?user=tidemill",
            "cache_rows": max(1, memory_bytes // row_bytes),
            "stream": str(_as_csv(data, measured_lot(max(batches)))),
            "check": str(_as_csv(data, check_lot(checked))),
            "output": str(scratch / "flink-output"),
            "warm_up_s": WARM_UP_FACTOR * seconds,
            "measured_s": seconds,
        }
        with Watch(_held_bytes, lambda: files_below(data.form("postgres") / "base")) as watch:
            rate = _run(place, asked, lambda: watch.peak_bytes)
    return {**rate, **_compared(data, checked, Path(asked["output"]), cores, scratch)}


def _run(place: Flink, asked: dict[str, Any], peak_bytes: Callable[[], int]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    command = [str(place.python), str(Path(flink_job.__file__)), json.dumps(asked)]
    with (
        tempfile.TemporaryFile("w+") as words,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=words, stdin=subprocess.DEVNULL, text=True
        ) as job,
    ):
        assert job.stdout is not None
        for line in job.stdout:
            if line.startswith("{"):
                told |= json.loads(line)
                told.setdefault("memory_peak_bytes", peak_bytes())
        if job.wait() or "checked" not in told:
            words.seek(0)
            causes = [line for line in words if re.match(r"(Caused by: )?[\w.]+(Error|Exception)\b", line)]
            last = causes[-1].strip() if causes else "no word on stderr"
            raise InternalError(f"Flink ended with exit code {job.returncode}: {last}", code="flink_ended")
    return {"rows_per_s": told["rate"]["rows_per_s"], "memory_peak_bytes": told["memory_peak_bytes"]}


def _held_bytes() -> int:
    return resident_bytes("java")() + proportional_bytes("postgres")()


def _as_csv(data: SparkData, lot: Lot) -> Path:
    """The lot's files in the one form that Flink reads without Hadoop; kept."""
    folder = data.path(lot).with_name(f"{data.path(lot).name}-csv")
    if not folder.exists():
        part = folder.with_suffix(".part")
        part.mkdir(exist_ok=True)
        plain = pyarrow.csv.WriteOptions(include_header=False)
        for file in sorted(data.path(lot).glob("*.parquet")):
            pyarrow.csv.write_csv(pq.read_table(file), part / f"{file.stem}.csv", plain)
        part.rename(folder)
    return folder


def _compared(data: SparkData, batch_rows: int, output: Path, cores: int, scratch: Path) -> dict[str, Any]:
    spark = start_session("bench flink-lookup", cores=cores, scratch=scratch / "spark")
    try:
        found = summed(spark.read.schema(from_arrow_schema(OUTPUT_SCHEMA)).csv(str(output)), "left")
        return {"same_rows": found == expected(spark, data, batch_rows, "left"), "verified_rows": found[0]}
    finally:
        spark.stop()


__all__ = ["run_flink"]
