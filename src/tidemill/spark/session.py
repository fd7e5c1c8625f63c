"""A Spark session that starts on a machine with Python alone, with every setting that matters in one table."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Setting:
    key: str
    value: str
    reason: str


_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

SETTINGS = (
    Setting("spark.driver.host", "127.0.0.1", "Spark would choose the machine's outer address"),
    Setting("spark.driver.bindAddress", "127.0.0.1", "nothing of a local session listens outside"),
    Setting("spark.ui.enabled", "false", "saves a port and start-up time; switch it on with `extra`"),
    Setting("spark.ui.showConsoleProgress", "false", "stage bars would tear our own live lines apart"),
    Setting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "a task waits 1-8 ms for its Python worker instead of 40-46 ms over TCP",
    ),
    Setting(
        "spark.sql.streaming.checkpointFileManagerClass",
        _FILE_MANAGER,
        "micro-batch floor 104 -> 48 ms on local disks (docs/decisions/0004)",
    ),
    Setting("spark.sql.adaptive.enabled", "false", "re-planning costs more than it saves on small batches"),
    Setting(
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "100000",
        "280,000 -> 570,000 rows/s through mapInArrow on large batches",
    ),
    Setting("spark.sql.session.timeZone", "UTC", "timestamps mean the same on every host"),
    Setting("spark.sql.streaming.stopTimeout", "10000", "a stop that hangs becomes an error after 10 s"),
)
LOW_LATENCY = (
    Setting(
        "spark.hadoop.fs.file.impl",
        "org.apache.hadoop.fs.RawLocalFileSystem",
        "66 -> 33 ms a batch for the checkpoint's two files; not with RocksDB state, which cannot commit on it",
    ),
)
JAVA = "-XX:+UseParallelGC"
"""Java's usual collector works beside the program all the time, which on few cores is work taken from it. `tide` in batches of
1,000,000, 200,000 and 2,000 rows, two runs in turns: 1,364 and 1,263, 531 and 556, 214 and 253 ms with it, 1,008 and 1,429, 501 and 506,
190 and 192 with this one."""
LOW_LATENCY_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""On two busy cores, first 20 s of a stream: start 10.8 -> 6.2 s, a batch some 290 to 360 -> 200 ms. Java's second compiler and its
parallel collector take the cores from the stream; a long job that computes in Java itself is better off with them."""
TASK_ATTEMPTS = 4
"""With plain `local[N]` one killed Python worker ends the query; `local[N,4]` tries a task four times."""


def start_session(
    name: str,
    *,
    cores: int | None = None,
    scratch: Path | None = None,
    low_latency: bool = False,
    extra: dict[str, str] | None = None,
) -> "SparkSession":
    """A local session with our settings, on a Java that was found or brought along.

    Args:
        name: Shown by Spark as the application's name.
        cores: Tasks at a time; all cores of the machine when left out.
        scratch: Folder for Spark's shuffle and spill files.
        low_latency: For streams of small batches whose work is done in Python workers: settings that shorten a
            batch's fixed cost at the price of Java's peak speed.
        extra: Settings of the caller, which win over ours.
    """
    use_java()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Workers must be this very interpreter: from a venv that is not activated they would be the system's.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    cores = cores or os.cpu_count() or 1
    java_options = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    settings = {s.key: s.value for s in SETTINGS} | {"spark.sql.shuffle.partitions": str(cores)}
    if low_latency:
        settings |= {s.key: s.value for s in LOW_LATENCY}
    java_options += f" {LOW_LATENCY_JAVA if low_latency else JAVA}"
    settings["spark.driver.extraJavaOptions"] = java_options
    if scratch is not None:
        settings["spark.local.dir"] = str(scratch)
    builder = SparkSession.builder.appName(name).master(f"local[{cores},{TASK_ATTEMPTS}]")
    for key, value in (settings | (extra or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


__all__ = ["LOW_LATENCY", "SETTINGS", "Setting", "start_session"]
