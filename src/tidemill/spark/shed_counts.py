"""Master rows by key on disk, for strategies that rank by them: counted once a version, mapped by all workers."""

from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidemill.core.memory import MemoryBudget
from tidemill.join.shedding.match_counts import MatchCounts
from tidemill.master import MasterData
from tidemill.spark.parking_parts import (
    FORMAT,
    Content,
    read_content,
    read_record,
    write_content,
    write_once,
)

COUNTS = "counts"


def counts_name(folder: Path, master: MasterData, *, memory_bytes: int) -> str:
    """The name under which the counts of this version lie in the lane; scans the master if they do not yet.

    They belong to the version that is current when the query starts. Later ones are ranked by them too: that may cost
    results, never rows.
    """
    (folder / COUNTS).mkdir(parents=True, exist_ok=True)
    name = blake2b(f"{master.identity} {memory_bytes}".encode(), digest_size=8).hexdigest()
    file = folder / COUNTS / f"{name}.json"
    if not file.exists():
        counts = MatchCounts.of(master, MemoryBudget(memory_bytes), memory_bytes=memory_bytes)
        batch = pa.record_batch({"code": counts.codes, "count": counts.counts})
        content = write_content(folder / COUNTS, [batch], batch.schema)
        facts = {
            "other_keys": counts.other_keys,
            "other_rows": counts.other_rows,
            "pages_read": counts.pages_read,
        }
        write_once(file, {"format": FORMAT, "content": asdict(content), **facts})
    return name


def read_counts(folder: Path, name: str) -> MatchCounts:
    """The counts of that name, mapped."""
    record = read_record(folder / COUNTS / f"{name}.json")
    batch = next(iter(read_content(folder / COUNTS, Content(**record.pop("content")))))
    codes, counts = (np.asarray(batch.column(place)) for place in range(2))
    return MatchCounts(codes, counts, **record)


__all__ = ["counts_name", "read_counts"]
