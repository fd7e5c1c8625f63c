"""The processes of the replay test: a streaming query that writes its rows by batch, and one that changes its master data.

What the master data holds after change n can be told for each key without asking the store, so the judge needs neither
the versions that expired meanwhile nor any code that is on trial.
"""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

KEYS = 2_000
"""Master keys at the start; the stream also asks for some that never exist."""
CLASSES = 50
"""Change n touches each key of class n % 50."""
CHANGES_PER_S = 10
MEMORY_BYTES = 16_000_000
CHANGES_BETWEEN_EXPIRES = 5
AFTER_OUTPUT = "after_output"
"""Point at which the driver can be told to die: the rows of a batch are written, Spark has not noted it as done."""

Int64s = npt.NDArray[np.int64]


def values_after(change: int, keys: Int64s) -> Int64s:
    """What each key's row holds after so many changes; -1 when there is none."""
    turns = (change - keys % CLASSES) // CLASSES
    last = turns * CLASSES + keys % CLASSES
    held = np.where(last < 1, 0, np.where(_is_deletion(last, keys), -1, last))
    return np.where((keys < 0) | (keys >= KEYS), -1, held)


def _is_deletion(change: Int64s | int, keys: Int64s) -> Any:
    return (change // CLASSES + keys // CLASSES) % 5 == 0


def change_of(number: int) -> pa.Table:
    """Updates a class of keys, and deletes a fifth of them until their next turn."""
    keys = np.arange(number % CLASSES, KEYS, CLASSES)
    operations = np.where(_is_deletion(number, keys), "d", "u")
    return pa.table({"_op": operations, "key": keys, "value": np.full(len(keys), number)})


def keep_changing(store: Path, log: Path) -> None:
    """Change and expire until killed; the log tells the number of the last change in each version."""
    from tidemill.master import MasterData

    number = 0
    with log.open("a", buffering=1) as told:
        while True:
            due = time.monotonic() + 1 / CHANGES_PER_S
            number += 1
            master = MasterData.open(store).apply(change_of(number))
            told.write(f"{json.dumps([master.version, number])}\n")
            if number % CHANGES_BETWEEN_EXPIRES == 0:
                master.expire(keep_last=1, older_than=timedelta(0))
            time.sleep(max(0.0, due - time.monotonic()))


def run_query(folder: Path, run: str) -> None:
    """Enrich the files of `in`, one a batch; rows go to `out/<batch>.<run>.parquet`."""
    from pyspark.sql import DataFrame

    import tidemill as tm
    from tidemill.spark.failpoint import die_if_told
    from tidemill.spark.session import start_session

    spark = start_session("replay", cores=2, scratch=folder / "scratch", low_latency=True)
    stream = spark.readStream.schema("id bigint, key bigint").option("maxFilesPerTrigger", 1)
    enriched = tm.enrich(
        stream.parquet(str(folder / "in")).repartition(2),
        tm.MasterData.open(folder / "store"),
        on="key",
        memory=MEMORY_BYTES,
        hot_rows=folder / "hot",
    )

    def keep(batch: DataFrame, batch_id: int) -> None:
        aside = folder / "out" / f".{batch_id}.{run}"
        pq.write_table(batch.toArrow(), aside)
        aside.replace(folder / "out" / f"{batch_id}.{run}.parquet")
        die_if_told(AFTER_OUTPUT)

    writing = enriched.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / "checkpoint"))
    writing.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1] == "change":
        keep_changing(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        run_query(Path(sys.argv[2]), sys.argv[3])
