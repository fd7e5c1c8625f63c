"""The speed of assembling alone, in a process of its own and over the stream's own rows, as contenders are measured.

```
master rows into memory │ trials: every way, twice │ warm-up: `seconds` │ measured: `seconds` │ cached reading │ rows checked
                        └────────────────────── one endless stream ────────────────────────┘
```
Speaks to the parent as `join_cell` does.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import pyarrow as pa

from tidemill.lab.assembly import CACHED_ROWS, Assembly, Located, Way, assembled, cached_rows_per_s
from tidemill.lab.join_cell import CAUGHT_ROWS, CellSpec, catch, run_for, say
from tidemill.lab.kernel_counts import KernelCounts, private_bytes
from tidemill.lab.streams import STREAM_BATCH_ROWS, endless
from tidemill.lab.verify import Judge

ASSEMBLY = "assembly"
"""Its name where contenders have theirs."""
TRIAL_SHARE = 1 / 12
"""Of the seconds, for each trial of a way: half a second of six."""
TRIALS = 2


def run_cell(spec: CellSpec) -> None:
    """Measure the quickest way and check its rows, telling the parent after each."""
    stream = spec.stream.read()
    say({"idle_bytes": private_bytes()})
    assembly = Assembly(spec.data)
    located = assembly.locate(stream)
    pa.set_cpu_count(1)
    rows_around = endless(located)
    way = quickest(assembly.ways, rows_around, spec)
    work = assembled(way, rows_around)
    warm_up_rows, _ = run_for(work, spec)
    before = KernelCounts.now()
    rows, seconds = run_for(work, spec)
    read = KernelCounts.now().since(before)
    start = located[: -(-CACHED_ROWS // STREAM_BATCH_ROWS)]
    measured = {
        "rows_per_s": rows / seconds,
        "bytes_read": read.bytes_read,
        "reads": read.reads,
        "stream_rows": rows,
        "seconds": seconds,
        "warm_up_rows": warm_up_rows,
        "way": way.name,
        "piece_rows": way.piece_rows,
        "cached_rows_per_s": cached_rows_per_s(assembly.ways, start),
    }
    say({"measured": measured})
    say({"verified": verify(spec, assembly, work, stream)})


def quickest(ways: Iterable[Way], stream: Iterator[Located], spec: CellSpec) -> Way:
    """The way with the best of its trials; each goes on in the stream where the one before has ended."""
    trial = replace(spec, seconds=spec.seconds * TRIAL_SHARE)
    best_rate: dict[Way, float] = {}
    for _, way in product(range(TRIALS), ways):
        rows, seconds = run_for(assembled(way, stream), trial)
        best_rate[way] = max(best_rate.get(way, 0.0), rows / seconds)
    return max(best_rate, key=best_rate.__getitem__)


def verify(
    spec: CellSpec,
    assembly: Assembly,
    work: Iterator[tuple[pa.RecordBatch, ...]],
    stream: list[pa.RecordBatch],
) -> dict[str, object]:
    """Whether the next rows are right; nobody can say where other master rows stand for those that did not fit."""
    if assembly.rows < spec.master_rows:
        return {"same_rows": None, "verified_rows": 0}
    caught = catch(work, CAUGHT_ROWS)
    rows = sum(output.num_rows for output in caught)
    return {"same_rows": Judge(spec.data).right_matches(caught, stream), "verified_rows": rows}


if __name__ == "__main__":
    run_cell(CellSpec(**json.loads(sys.argv[1])))

__all__ = ["ASSEMBLY", "quickest", "run_cell"]
