"""Sorting more rows than the memory holds: in order, complete, stable, and within the memory."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.core.errors import SpecError
from tidemill.master import MasterData
from tidemill.master.sort import ExternalSort

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
EDGES = [-(2**63), -(2**63) + 1, 2**63 - 2, 2**63 - 1]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keys=st.lists(
        st.one_of(st.integers(-3, 3), st.sampled_from(EDGES), st.integers(-500, 500)), max_size=300
    ),
    batch_rows=st.integers(1, 70),
    memory_bytes=st.sampled_from([1, 300, 1000, 4000, 10**6]),
)
def test_rows_leave_in_order_and_equal_ones_as_they_came(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], batch_rows: int, memory_bytes: int
):
    sort = ExternalSort(tmp_path_factory.mktemp("s") / "runs", SCHEMA, "k", memory_bytes)
    rows = pa.record_batch(
        [pa.array(keys, pa.int64()), pa.array(range(len(keys)), pa.int64())], schema=SCHEMA
    )
    for at in range(0, len(keys), batch_rows):
        sort.add(rows.slice(at, batch_rows))
    found = [tuple(row.values()) for batch in sort.in_order() for row in batch.to_pylist()]
    assert found == sorted(zip(keys, range(len(keys)), strict=True))
    assert sort.rows == len(keys)


def test_ranges_stay_within_the_memory(tmp_path: Path):
    """Also when one code alone is larger: it is passed on in batches as they lie in the runs."""
    memory_bytes = 300_000
    sort = ExternalSort(tmp_path / "runs", SCHEMA, "k", memory_bytes)
    rng = np.random.default_rng(2)
    keys = np.where(rng.random(200_000) < 0.4, 17, rng.integers(0, 1000, 200_000))
    for at in range(0, len(keys), 1000):
        part = keys[at : at + 1000]
        sort.add(pa.record_batch([pa.array(part), pa.array(np.arange(at, at + 1000))], schema=SCHEMA))
    assert len(sort._runs) > 30
    largest = max(batch.nbytes for batch in sort.in_order())
    assert largest <= memory_bytes / 2
    found = np.concatenate([batch.column("k").to_numpy() for batch in sort.in_order()])
    assert (found == np.sort(keys)).all()


def test_a_reader_is_read_once_and_null_keys_are_counted_to_its_end(tmp_path: Path):
    def batches():
        for n in range(10):
            yield pa.record_batch([pa.array([None, n], pa.int64())], names=["id"])

    reader = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches())
    with pytest.raises(SpecError, match="10 of 20 rows"):
        MasterData.build(reader, key="id", path=tmp_path)
    assert list((tmp_path / "versions").iterdir()) == []


CHILD = """
    import json, os, signal, sys
    from pathlib import Path
    import numpy as np
    import pyarrow as pa
    from tidemill.master import MasterData

    ROWS, BATCH, DIES = 2_000_000, 50_000, {dies}
    schema = pa.schema([("id", pa.string()), ("n", pa.int64()), ("text", pa.string())])

    def own_bytes():
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))

    def batches():
        global most
        text = pa.array(["some words that make the row wider, and wider"] * BATCH)
        for at in range(0, ROWS, BATCH):
            most = max(most, own_bytes())
            if DIES and at == ROWS // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            numbers = (np.arange(at, at + BATCH) * 7919) % ROWS
            names = pa.array(np.char.add("key ", numbers.astype("U8")), pa.string())
            yield pa.record_batch([names, pa.array(numbers), text], schema=schema)

    def progress(done, rows):
        global most
        most = max(most, own_bytes())

    most = 0
    warm = pa.table({{"id": ["a"], "n": [1], "text": ["b"]}})
    MasterData.build(warm, key="id", path=sys.argv[1])
    baseline = most = own_bytes()
    reader = pa.RecordBatchReader.from_batches(schema, batches())
    master = MasterData.build(reader, key="id", path=sys.argv[1], memory="48 MB", progress=progress)
    rows = master.manifest
    print(json.dumps([most - baseline, rows.rows, rows.distinct_keys, rows.rows * rows.row_bytes]))
"""


def child(path: Path, *, dies: bool) -> subprocess.CompletedProcess[str]:
    script = textwrap.dedent(CHILD.format(dies=dies))
    return subprocess.run(
        [sys.executable, "-c", script, str(path)], check=False, capture_output=True, text=True
    )


def test_a_build_bigger_than_its_memory_stays_within_it(tmp_path: Path):
    ran = child(tmp_path, dies=False)
    assert ran.returncode == 0, ran.stderr
    growth_bytes, rows, distinct, data_bytes = json.loads(ran.stdout)
    assert (rows, distinct) == (2_000_000, 2_000_000)
    assert data_bytes > 3 * 48_000_000
    # As for the joins: a tenth for what no one counts, and a floor for the allocator's arenas.
    assert 0 < growth_bytes < 48_000_000 * 1.1 + 16 * 2**20
    assert sorted(p.name for p in (tmp_path / "versions" / "000002").iterdir()) == [
        "index.arrow",
        "manifest.json",
        "packed.arrow",
        "pages.bin",
    ]


def test_what_a_killed_build_left_is_removed_by_the_next(tmp_path: Path):
    assert child(tmp_path, dies=True).returncode == -signal.SIGKILL
    assert list((tmp_path / "versions").glob(".building-*/runs/0/*.arrow"))
    assert MasterData.open(tmp_path).rows == 1
    assert MasterData.build(pa.table({"id": ["c"]}), key="id", path=tmp_path).version == 2
    assert sorted(entry.name for entry in (tmp_path / "versions").iterdir()) == ["000001", "000002"]
