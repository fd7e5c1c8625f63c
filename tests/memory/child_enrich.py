"""Runs one stream through `tm.enrich` and prints what its workers held and did; started by the test beside it."""

import json
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
from pyspark.sql import DataFrame

import tidemill as tm
from tidemill.spark.memory_sample import MemorySampler
from tidemill.spark.metrics import tasks_told
from tidemill.spark.session import start_session

CORES = 2
TRIAL = "trial"
_SECONDS_BETWEEN_SAMPLES = 0.02


def measure(folder: Path, stream: str, memory_bytes: int, stores: list[str]) -> dict[str, object]:
    case = "-".join([stream, *stores])
    spark = start_session("memory", cores=CORES, scratch=folder / f"{case}-scratch", low_latency=True)
    rows = spark.readStream.schema("id bigint, key bigint").option("maxFilesPerTrigger", 1)
    hot_rows = folder / f"{case}-hot"
    prefixes = ["", *(f"{store}_" for store in stores[1:])]
    lookups = [
        tm.Lookup(master=tm.MasterData.open(folder / store), on="key", prefix=prefix)
        for store, prefix in zip(stores, prefixes, strict=True)
    ]
    enriched = tm.enrich(
        rows.parquet(str(folder / stream)), lookups, memory=memory_bytes, tasks=CORES, observe_as=TRIAL, hot_rows=hot_rows
    )  # fmt: skip
    sums = " + ".join(f"{prefix}measure_7 + length({prefix}name)" for prefix in prefixes)
    counted: list[tuple[int, int]] = []
    cpu_seconds: dict[str, float] = {}

    def keep(batch: DataFrame, _: int) -> None:
        # Every column is computed, none comes to this process: its memory is not on trial, its cores are.
        seen = batch.selectExpr(f"{sums} AS sum")
        whole = seen.selectExpr("count(*) AS rows", "count(sum) AS known").first()
        assert whole is not None
        counted.append((whole["rows"], whole["known"]))
        for note in (hot_rows / "workers").glob("[0-9]*"):
            with suppress(psutil.NoSuchProcess):  # one that was idle for a minute has ended
                cpu_seconds[note.name] = sum(psutil.Process(int(note.name)).cpu_times()[:2])

    sampler, ended = MemorySampler(hot_rows), threading.Event()

    def sample() -> None:
        while not ended.wait(_SECONDS_BETWEEN_SAMPLES):
            sampler.sample()

    watching = threading.Thread(target=sample, daemon=True)
    watching.start()
    writing = enriched.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / f"{case}-cp"))
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    ended.set()
    watching.join()
    progresses = [progress.observedMetrics[TRIAL].asDict() for progress in query.recentProgress]
    told = [[task["lookups"][-1] for task in tasks_told(observed)] for observed in progresses]
    spark.stop()
    return {
        "peak_bytes": sampler.peak_bytes,
        "rows": sum(rows for rows, _ in counted),
        "known": sum(known for _, known in counted),
        "rows_of_tasks": [[task["rows_in"] for task in batch] for batch in told],
        "hot_hits": sum(task["hot_hits"] for batch in told for task in batch),
        "cpu_seconds": list(cpu_seconds.values()),
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])))
