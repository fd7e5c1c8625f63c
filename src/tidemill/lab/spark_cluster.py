"""A standalone cluster of Spark on loopback: a master and two workers, each a process of its own."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tidemill.core.errors import InternalError
from tidemill.spark.java import use_java

WORKERS = 2
START_S = 60.0
_ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")
_JOINED = "Successfully registered with master"


@contextmanager
def cluster(cores: int, scratch: Path) -> Iterator[str]:
    """The master's address, once all workers have joined it; they share the cores."""
    use_java()
    scratch.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        main = stack.enter_context(_daemon(scratch / "master", ["Master", "--port", "0"]))
        address = _wait(main, _ADDRESS)
        each = [str(max(1, cores // WORKERS)), "--memory", "2g", "--work-dir", str(scratch / "work"), address]
        logs = [
            stack.enter_context(_daemon(scratch / f"worker-{number}", ["Worker", "--cores", *each]))
            for number in range(WORKERS)
        ]
        for log in logs:
            _wait(log, re.compile(f"({_JOINED})"))
        yield address


@contextmanager
def _daemon(log: Path, arguments: list[str]) -> Iterator[Path]:
    """One process, its words in the file."""
    import pyspark

    home = Path(pyspark.__file__).parent
    kind, *options = arguments
    command = [
        str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}",
        "--host", "127.0.0.1", "--webui-port", "0", *options,
    ]  # fmt: skip
    settings = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "512m"}
    with log.open("w") as words:
        process = subprocess.Popen(command, stdout=words, stderr=words, env={**os.environ, **settings})
        try:
            yield log
        finally:
            process.terminate()
            process.wait()


def _wait(log: Path, wanted: re.Pattern[str]) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found = wanted.search(log.read_text())
        if found:
            return found[1]
        time.sleep(0.1)
    last = (log.read_text().strip().splitlines() or ["no word from it"])[-1]
    raise InternalError(
        f"{log.name} of the cluster did not start within {START_S:.0f} s: {last}", code="no_cluster"
    )


__all__ = ["cluster"]
