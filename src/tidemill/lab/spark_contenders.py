"""The contenders of the Spark benchmark by name, each opened with a session of its own."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from tidemill.core.errors import unknown_choice
from tidemill.lab.spark_ceiling import ceiling
from tidemill.lab.spark_check import Kind
from tidemill.lab.spark_cluster import cluster
from tidemill.lab.spark_data import SparkData
from tidemill.lab.spark_memory import files_below, proportional_bytes, resident_bytes
from tidemill.lab.spark_plans import PLANS, SETTINGS, Joined
from tidemill.lab.spark_postgres import looked_up, master_table
from tidemill.lab.store import READS_IN_FLIGHT
from tidemill.master import MasterData
from tidemill.spark.enrich import enrich
from tidemill.spark.memory_sample import MemorySampler
from tidemill.spark.session import LOW_LATENCY, start_session
from tidemill.spark.warm_start import FOLDER as HOT_CODES

JOINS = {"tide": "tide", "moij": "moij", "mesh": "mesh", "tide-cluster": "tide"}
"""Those of ours, each with the algorithm that `enrich` is told."""
LOOKUPS = ("lookup-postgres", "flink-lookup")
"""Cache as many bytes as a join may hold at one memory share."""
ALL = (*PLANS, *LOOKUPS, "ceiling", *JOINS)
BY_DEFAULT = tuple(name for name in ALL if name != "tide-cluster")
MEMORY_OF = {
    **dict.fromkeys(PLANS, "JVM, resident"),
    "lookup-postgres": "PostgreSQL, PSS",
    "flink-lookup": "Flink's JVM, resident, and PostgreSQL, PSS",
    "ceiling": "Python workers above idle, PSS",
    **dict.fromkeys(JOINS, "Python workers above idle, PSS"),
}
"""What `memory_peak_bytes` is the memory of."""
PROGRESS_KEPT = 1000


@dataclass(frozen=True)
class Opened:
    """A contender that is ready to join."""

    session: SparkSession
    joined: Joined
    held_bytes: Callable[[], int]
    rows: Kind = "left"
    in_each_batch: bool = False
    """Joins inside `foreachBatch`."""
    files: Callable[[], Iterable[Path]] = tuple
    """Of the master data, where they are read through the page cache."""


def check_contenders(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in ALL:
            raise unknown_choice("contender", name, list(ALL))
    return tuple(dict.fromkeys(names))


@contextmanager
def opened(
    name: str, data: SparkData, memory_bytes: int, cores: int, scratch: Path, hot_rows: Path
) -> Iterator[Opened]:
    """The contender, until the session ends.

    Args:
        name: Which.
        data: What it joins.
        memory_bytes: That ours, and those that keep lookups, may hold.
        cores: Task slots.
        scratch: A folder on disk.
        hot_rows: A folder for what the workers of ours share, in memory as by default.
    """
    if name in PLANS:
        with _session(name, cores, scratch, SETTINGS) as spark:
            yield _plan(name, spark, data)
    elif name == "lookup-postgres":
        with master_table(data, memory_bytes) as uri, _session(name, cores, scratch) as spark:
            yield Opened(
                spark, lambda stream: looked_up(stream, uri), proportional_bytes("postgres"),
                in_each_batch=True, files=lambda: files_below(data.form("postgres") / "base"),
            )  # fmt: skip
    elif name == "tide-cluster":
        with (
            cluster(cores, scratch) as address,
            _session(name, cores, scratch, {"spark.master": address}) as spark,
        ):
            yield _ours(name, spark, data, memory_bytes, hot_rows)
    else:
        with _session(name, cores, scratch) as spark:
            yield _ours(name, spark, data, memory_bytes, hot_rows)


def _plan(name: str, spark: SparkSession, data: SparkData) -> Opened:
    read = {"spark-default": data.parquet, "spark-bucketed": data.form("buckets")}.get(name)
    return Opened(
        spark,
        PLANS[name](spark, data),
        resident_bytes("java"),
        rows="inner" if name == "spark-broadcast-stream" else "left",
        files=lambda: [] if read is None else files_below(read),
    )


def _ours(name: str, spark: SparkSession, data: SparkData, memory_bytes: int, hot_rows: Path) -> Opened:
    sampler = MemorySampler(hot_rows)
    if name == "ceiling":
        return Opened(
            spark, lambda stream: ceiling(stream, data.parquet, hot_rows), sampler.sample, rows="stream"
        )
    shutil.rmtree(data.store / HOT_CODES, ignore_errors=True)  # what runs before this one told to be hot
    master = MasterData.open(data.store, direct=True, reads_in_flight=READS_IN_FLIGHT)
    return Opened(
        spark,
        lambda stream: enrich(
            stream,
            master,
            on="key",
            how="left",
            memory=memory_bytes,
            algorithm=JOINS[name],
            hot_rows=hot_rows,
            observe_as=None,  # a no-op sink would pay for a projection that other sinks do anyway
        ),
        sampler.sample,
        files=lambda: files_below(data.store),
    )


@contextmanager
def _session(
    name: str, cores: int, scratch: Path, extra: dict[str, str] | None = None
) -> Iterator[SparkSession]:
    """With the checkpoint's quick file system for everybody, and every batch's progress kept."""
    settings = {
        **{setting.key: setting.value for setting in LOW_LATENCY},
        "spark.sql.streaming.numRecentProgressUpdates": str(PROGRESS_KEPT),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **(extra or {}),
    }
    session = start_session(f"bench {name}", cores=cores, scratch=scratch / "spark", extra=settings)
    try:
        yield session
    finally:
        session.stop()


__all__ = ["ALL", "BY_DEFAULT", "JOINS", "LOOKUPS", "MEMORY_OF", "Opened", "check_contenders", "opened"]
