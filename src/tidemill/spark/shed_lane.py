"""What lies in the folder of a `Shed` beside the rows: the rules of each batch, and how busy the last one was.

```
path/lane.json                         sealed: tasks among which the rows of every batch are dealt
path/claims/<query>.<batch>.json       sealed: the rules of a batch; linked into place once, so that a re-run has them too
path/rounds/<query>.<batch>.<part>     what one task kept and shed; goes when the batch is set aside
path/load.json                         sealed: rows of the last batch, and when it was
```
Rows themselves, and those that came back, lie as in a parking (`parking_parts.py`, `parking_releases.py`).
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidemill.core.files import write_atomically, write_sealed
from tidemill.spark.parking_parts import FORMAT, read_record, write_once

_CLAIMS, _ROUNDS, _LOAD, _LANE = "claims", "rounds", "load.json", "lane.json"
KEPT_CLAIMS = 100


@dataclass(frozen=True)
class Rules:
    """By which the rows of a batch are kept."""

    rows: int
    """The most that are joined."""
    strategy: str
    counts: str | None
    """Name of the match counts, for strategies that rank by them."""


@dataclass(frozen=True)
class Load:
    """How busy the last batch was."""

    live_rows: int = 0
    """That arrived for the first time."""
    shed_rows: int = 0
    room_rows: int = 0
    at_ms: int = 0

    def room_for_returning(self, now_ms: int, quiet_ms: int, room_rows: int) -> int:
        """Rows that may come back now: what the last batch left free, all if it was long ago, none if it shed."""
        if now_ms - self.at_ms >= quiet_ms:
            return room_rows
        return 0 if self.shed_rows else max(0, self.room_rows - self.live_rows)


def prepare_lane(path: Path, tasks: int) -> int:
    """The tasks among which rows are dealt: those that the lane began with, since fates hang on them."""
    for name in (_CLAIMS, _ROUNDS):
        (path / name).mkdir(parents=True, exist_ok=True)
    write_once(path / _LANE, {"format": FORMAT, "tasks": tasks})
    return int(read_record(path / _LANE)["tasks"])


def read_tasks(path: Path) -> int | None:
    """Those that the lane began with; None before."""
    return int(read_record(path / _LANE)["tasks"]) if (path / _LANE).exists() else None


def claim_rules(path: Path, query_id: str, batch_id: int, wish: Rules) -> Rules:
    """The rules of this batch: ours if we are first, else those it began with."""
    file = path / _CLAIMS / f"{query_id}.{batch_id}.json"
    if not file.exists():
        write_once(file, {"format": FORMAT, **asdict(wish)})
        (path / _CLAIMS / f"{query_id}.{batch_id - KEPT_CLAIMS}.json").unlink(missing_ok=True)
    return Rules(**read_record(file))


def tell_round(path: Path, query_id: str, batch_id: int, part: int, told: dict[str, Any]) -> None:
    """Note what a task did; a task that runs again says the same."""
    write_atomically(path / _ROUNDS / f"{query_id}.{batch_id}.{part}", json.dumps(told).encode())


def note_load(path: Path, query_id: str, batch_id: int) -> None:
    """Note how busy this batch was, for the source of returning rows; what tasks told of it and of earlier ones goes.

    A re-run whose rows were set aside before may have had no task yet: then nothing is noted.
    """
    files = {
        file: int(file.name.split(".")[-2])
        for file in (path / _ROUNDS).glob(f"{query_id}.*")
        if not file.name.endswith(".tmp")
    }
    told = [json.loads(file.read_bytes()) for file, batch in files.items() if batch == batch_id]
    if told:
        load = Load(
            live_rows=sum(one["arrived_rows"] for one in told),
            shed_rows=sum(one["shed_rows"] for one in told),
            room_rows=told[0]["batch_room_rows"],
            at_ms=time.time_ns() // 1_000_000,
        )
        write_sealed(path / _LOAD, {"format": FORMAT, **asdict(load)})
    for file in files:
        file.unlink(missing_ok=True)


def read_load(path: Path) -> Load:
    return Load(**read_record(path / _LOAD)) if (path / _LOAD).exists() else Load()


__all__ = [
    "Load",
    "Rules",
    "claim_rules",
    "note_load",
    "prepare_lane",
    "read_load",
    "read_tasks",
    "tell_round",
]
