"""Settings that a session of the user's own lacks: what each would bring, and how to set it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tidemill.spark.session import SETTINGS, TASK_ATTEMPTS

_REASONS = {setting.key: setting for setting in SETTINGS}
_ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_LEAST_ARROW_ROWS = 50_000
"""10,000 rows, Spark's default, halve the speed; between 50,000 and 100,000 there is little left to gain."""
_EQUAL = (
    "spark.python.unix.domain.socket.enabled",
    "spark.sql.streaming.checkpointFileManagerClass",
    "spark.sql.adaptive.enabled",
)
"""Of `SETTINGS`, those that a session anywhere is better off with; the others suit sessions on one machine."""


@dataclass(frozen=True)
class MissingSetting:
    key: str
    found: str | None
    """None for Spark's default."""
    wanted: str
    effect: str
    fix: str


def missing_settings(get: Callable[[str], str | None]) -> Iterator[MissingSetting]:
    """Settings that should be others.

    Args:
        get: The value of a key, or None where nobody set it.

    >>> mine = {"spark.sql.adaptive.enabled": "false", "spark.master": "local[4,4]"}
    >>> [missing.key.rpartition(".")[2] for missing in missing_settings(mine.get)]
    ['enabled', 'checkpointFileManagerClass', 'maxRecordsPerBatch']
    """
    for key in _EQUAL:
        wanted, found = _REASONS[key], get(key)
        if found != wanted.value:
            yield MissingSetting(key, found, wanted.value, wanted.reason, _fix(key, wanted.value))
    rows = get(_ARROW_ROWS)
    if rows is None or 0 < int(rows) < _LEAST_ARROW_ROWS:
        wanted = _REASONS[_ARROW_ROWS]
        yield MissingSetting(_ARROW_ROWS, rows, wanted.value, wanted.reason, _fix(_ARROW_ROWS, wanted.value))
    reuse = get("spark.python.worker.reuse")
    if reuse == "false":
        effect = "each task would start a Python worker and open the join anew"
        yield MissingSetting(
            "spark.python.worker.reuse", reuse, "true", effect, _fix("spark.python.worker.reuse", "true")
        )
    master = get("spark.master") or ""
    if re.fullmatch(r"local(\[[^,\]]*\])?", master):
        wanted_master = f"{master.rstrip(']') if '[' in master else 'local[1'},{TASK_ATTEMPTS}]"
        effect = "one killed Python worker ends the query: a task is tried once"
        yield MissingSetting(
            "spark.master", master, wanted_master, effect, f'builder.master("{wanted_master}")'
        )


def _fix(key: str, value: str) -> str:
    if key.startswith("spark.sql."):
        return f'spark.conf.set("{key}", "{value}") before the query starts'
    return f'builder.config("{key}", "{value}"): when the session starts'


__all__ = ["MissingSetting", "missing_settings"]
