"""The Flink side of `flink-lookup`: run by the Python of Flink's own environment, so it knows nothing of Tidemill.

Takes one JSON object, gives lines of JSON: {"java": pid} first, then {"rate": …} of the measured job, then {"checked": true}
when the rows to compare are written.
"""

import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

MASTER = {
    "key": "BIGINT", "name": "STRING", "supplier": "STRING", "supplier_id": "BIGINT", "price": "DOUBLE",
    "stock": "BIGINT", "shelf": "INT", "listed_on": "DATE",
}  # fmt: skip
STREAM = {"key": "BIGINT", "event": "BIGINT", "pieces": "INT"}
OUTPUT = STREAM | {name: kind for name, kind in MASTER.items() if name != "key"}
SAMPLE_EVERY_S = 0.5


def table_environment(asked: dict[str, Any]) -> Any:
    from pyflink.table import (  # type: ignore[import-not-found]  # lives in an environment of its own
        EnvironmentSettings,
        TableEnvironment,
    )

    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = {
        "pipeline.jars": ";".join(asked["jars"]),
        "parallelism.default": str(asked["cores"]),
        "pipeline.object-reuse": "true",
        "rest.port": str(asked["port"]),
        "rest.address": "127.0.0.1",
        "metrics.fetcher.update-interval": "200",
    }
    for name, value in settings.items():
        environment.get_config().set(name, value)
    cache = {
        "connector": "jdbc", "url": asked["jdbc"], "table-name": "master",
        "lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": str(asked["cache_rows"]),
    }  # fmt: skip
    environment.execute_sql(_table("master", MASTER, cache))
    return environment


def insert(environment: Any, source: str, sink: dict[str, str]) -> Any:
    """The job that reads CSV files, looks each row up and hands it on."""
    files = {"connector": "filesystem", "path": source, "format": "csv"}
    environment.execute_sql("DROP TABLE IF EXISTS arrivals")
    environment.execute_sql("DROP TABLE IF EXISTS found")
    environment.execute_sql(_table("arrivals", STREAM, files, "`at` AS PROCTIME()"))
    environment.execute_sql(_table("found", OUTPUT, sink))
    columns = [f"s.`{name}`" for name in STREAM] + [f"m.`{name}`" for name in OUTPUT if name not in STREAM]
    return environment.execute_sql(
        f"INSERT INTO found SELECT {', '.join(columns)} FROM arrivals AS s "  # noqa: S608 - names of ours
        "LEFT JOIN master FOR SYSTEM_TIME AS OF s.`at` AS m ON s.`key` = m.`key`"
    )


def rate(job: str, port: int, warm_up_s: float, measured_s: float) -> dict[str, float]:
    """Rows a second that left the lookup, after warming up, or over what there was of the stream."""
    ask = _Counter(port, job)
    started, samples = time.monotonic(), [(time.monotonic(), 0.0)]
    while samples[-1][0] - started < warm_up_s + measured_s and ask.runs():
        time.sleep(SAMPLE_EVERY_S)
        samples.append((time.monotonic(), ask.rows()))
    late = [sample for sample in samples if sample[0] - started >= warm_up_s] or samples[len(samples) // 2 :]
    (first_s, first), (last_s, last) = late[0], late[-1]
    return {
        "rows_per_s": (last - first) / max(1e-9, last_s - first_s),
        "seconds": last_s - first_s,
        "warm_up_rows": first,
    }


class _Counter:
    """Asks Flink's REST service how many rows its lookup has given."""

    def __init__(self, port: int, job: str) -> None:
        self._job = f"http://127.0.0.1:{port}/jobs/{job}"
        self._metrics = ""

    def runs(self) -> bool:
        return self._get("")["state"] in ("INITIALIZING", "CREATED", "RUNNING")

    def rows(self) -> float:
        if not self._metrics:
            self._metrics = self._find()
        if not self._metrics:
            return 0.0
        return sum(float(told["sum"]) for told in self._get(self._metrics))

    def _find(self) -> str:
        """The counter of the lookup's output, which hides in whatever vertex Flink chained it into."""
        for vertex in self._get("")["vertices"]:
            place = f"/vertices/{vertex['id']}/subtasks/metrics"
            for metric in self._get(place):
                if "LookupJoin" in metric["id"] and metric["id"].endswith(".numRecordsOut"):
                    return f"{place}?get={metric['id']}&agg=sum"
        return ""

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self._job + path, timeout=10) as answer:  # noqa: S310 - on loopback
            return json.load(answer)


def _table(name: str, columns: dict[str, str], options: dict[str, str], more: str = "") -> str:
    fields = ", ".join(
        [*(f"`{column}` {kind}" for column, kind in columns.items()), *([more] if more else [])]
    )
    given = ", ".join(f"'{option}' = '{value}'" for option, value in options.items())
    return f"CREATE TABLE {name} ({fields}) WITH ({given})"


def main(asked: dict[str, Any]) -> None:
    environment = table_environment(asked)
    running = insert(environment, asked["stream"], {"connector": "blackhole"}).get_job_client()
    say({"rate": rate(str(running.get_job_id()), asked["port"], asked["warm_up_s"], asked["measured_s"])})
    running.cancel().result()
    files = {"connector": "filesystem", "path": asked["output"], "format": "csv"}
    insert(environment, asked["check"], files).wait()
    say({"checked": True})


def say(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("PYFLINK_CLIENT_EXECUTABLE", str(Path(sys.executable)))
    main(json.loads(sys.argv[1]))
