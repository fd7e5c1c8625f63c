"""A build folds the versions of each key into one row, whatever their number, and refuses what no history can have."""

import json
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import SpecError
from tidemill.master import MasterData
from tidemill.master.history import HISTORY_COLUMN, History
from tidemill.master.keys import KeyForm

PAIR = ("since", "until")


def versions(master: MasterData) -> list[dict[str, Any]]:
    assert master.history is not None
    rows = [row for page in master.scan() for row in master.history.flat(page).to_pylist()]
    for row in rows:
        row.pop("_code", None)
    return rows


def test_a_store_tells_its_history_and_gives_it_back(tmp_path: Path):
    days = pa.array([19_800, 19_900, 20_000, 19_850], pa.date32())
    ends = pa.array([19_900, 20_000, None, None], pa.date32())
    nested = pa.array([[1], None, [], [2, None]], pa.list_(pa.int8()))
    table = pa.table(
        {"until": ends, "id": [7, 7, 7, 8], "since": days, "name": ["a", None, "c", "d"], "n": nested}
    )
    master = MasterData.build(table.take([3, 1, 0, 2]), key="id", path=tmp_path, history=PAIR)
    again = MasterData.open(tmp_path)
    assert again.history == master.history
    assert again.history is not None
    assert (again.history.valid_from, again.history.valid_to) == PAIR
    assert again.history.schema == table.drop_columns("id").schema
    assert (again.rows, again.manifest.distinct_keys, again.manifest.most_rows_of_a_key) == (2, 2, 1)
    assert again.schema.names == ["id", HISTORY_COLUMN]
    newest_first = table.take([2, 1, 0, 3]).to_pylist()
    assert versions(again) == [{"id": row["id"], **row} for row in newest_first]
    _, found = again.lookup(pa.array([8]))
    assert again.history.flat(found).column("name").to_pylist() == ["d"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(),
        pa.int64(),
        pa.uint32(),
        pa.date32(),
        pa.date64(),
        pa.timestamp("s"),
        pa.timestamp("ns", "Asia/Tokyo"),
    ],
    ids=str,
)
def test_ends_keep_their_type(tmp_path: Path, kind: pa.DataType):
    day = 86_400_000 if kind == pa.date64() else 1
    numbers = [pa.array(values, pa.int64()) for values in ([3 * day, 1 * day], [None, 3 * day])]
    since, until = (
        array.cast(pa.int32()).cast(kind) if kind == pa.date32() else array.cast(kind) for array in numbers
    )
    table = pa.table({"id": ["a", "a"], "since": since, "until": until})
    master = MasterData.build(table, key="id", path=tmp_path, history=PAIR)
    assert versions(master) == table.to_pylist()
    assert master.history is not None
    assert master.history.flat(next(master.scan())).schema.field("until").type == kind


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=30),
    memory_bytes=st.sampled_from([2000, 20_000, 2**20]),
    wide=st.booleans(),
)
def test_any_number_of_versions_in_any_memory(tmp_path_factory, counts, memory_bytes, wide):
    """Composite keys; runs that end within a key; histories longer than a page."""
    rows = [
        {
            "shop": key % 3,
            "sku": f"sku {key}",
            "since": n,
            "until": n + 1,
            "text": f"{key} {n}" + "x" * 700 * wide,
        }
        for n in range(12)
        for key, count in enumerate(counts)
        if n < count
    ]
    schema = pa.schema(
        [
            ("shop", pa.int64()),
            ("sku", pa.string()),
            ("since", pa.int16()),
            ("until", pa.int16()),
            ("text", pa.string()),
        ]
    )
    reader = pa.RecordBatchReader.from_batches(
        schema, pa.Table.from_pylist(rows, schema).to_batches(max_chunksize=5)
    )
    master = MasterData.build(
        reader,
        key=("shop", "sku"),
        path=tmp_path_factory.mktemp("store"),
        history=PAIR,
        memory=memory_bytes,
        page_bytes=4096,
    )
    assert master.rows == sum(count > 0 for count in counts)
    found = versions(master)
    assert sorted(map(repr, found)) == sorted(map(repr, rows))
    order = [(row["sku"], -row["since"]) for row in found]
    assert all(a[0] != b[0] or a[1] < b[1] for a, b in pairwise(order))


def test_a_seed_that_collides_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two keys of one code would otherwise share a history."""
    codes = KeyForm.codes

    def colliding(form: KeyForm, columns: Any) -> Any:
        found, present = codes(form, columns)
        return (found * 0 if form.seed < 2 else found), present

    monkeypatch.setattr(KeyForm, "codes", colliding)
    table = pa.table({"id": ["a", "b", "a"], "since": [1, 1, 2], "until": [2, None, None]})
    master = MasterData.build(table, key="id", path=tmp_path, history=PAIR)
    assert (master.rows, master.key_form.seed) == (2, 2)
    assert sorted(map(repr, versions(master))) == sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize(
    ("since", "until", "code", "count", "keys"),
    [
        ([1, 3, 5, 7], [3, 5, 7, None], None, 0, []),
        ([1, 3, 5, 7], [3, None, 7, None], "overlapping_versions", 1, [7]),
        ([1, 3, 5, 7], [4, 6, 8, None], "overlapping_versions", 3, [7, 7, 7]),
        ([1, 1, 5, 7], [2, 2, 7, None], "overlapping_versions", 1, [7]),
        ([1, 3, 5, 7], [3, 3, 4, None], "empty_version", 2, [7, 7]),
        ([1, None, None, 7], [3, 3, 4, None], "null_valid_from", 2, [7, 7]),
    ],
)
def test_unfit_versions_are_counted_and_nothing_is_published(tmp_path: Path, since, until, code, count, keys):
    """In batches of two rows, so that a count spans several."""
    kept = MasterData.build(
        pa.table({"id": [1], "since": [1], "until": [2]}), key="id", path=tmp_path, history=PAIR
    )
    others = pa.table({"id": [6, 8], "since": [1, 1], "until": pa.array([None, None], pa.int64())})
    table = pa.concat_tables([pa.table({"id": [7] * 4, "since": since, "until": until}), others])
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=2))

    def build() -> MasterData:
        return MasterData.build(reader, key="id", path=tmp_path, history=PAIR, memory=400)

    if code is None:
        assert build().rows == 3
        return
    with pytest.raises(SpecError, match=f"{count} of 6 versions") as error:
        build()
    assert (error.value.code, error.value.versions, error.value.keys) == (code, count, keys)
    assert MasterData.open(tmp_path).version == kept.version
    assert [entry.name for entry in (tmp_path / "versions").iterdir()] == ["000001"]


@pytest.mark.parametrize(
    ("columns", "options", "code"),
    [
        ({}, {"history": ("since", "til")}, "unknown_history_column"),
        ({}, {"history": ("id", "until")}, "unknown_history_column"),
        ({}, {"history": ("since", "since")}, "history_columns"),
        ({}, {"order_by": "since"}, "history_order"),
        ({"until": pa.array([2.5])}, {}, "time_type"),
        ({"until": pa.array([2], pa.uint64())}, {}, "time_type"),
        ({"until": pa.array([2], pa.int32()).cast(pa.date32())}, {}, "history_types"),
        ({"_history": pa.array([2])}, {"key": "_history"}, "column_twice"),
    ],
)
def test_what_cannot_be_a_history_is_refused_before_a_row_is_read(tmp_path: Path, columns, options, code):
    table = pa.table({"id": [1], "since": [1], "until": [2], **columns})

    def rows() -> Any:
        raise AssertionError("a row was read")
        yield

    reader = pa.RecordBatchReader.from_batches(table.schema, rows())
    with pytest.raises(SpecError) as error:
        MasterData.build(reader, **{"key": "id", "path": tmp_path, "history": PAIR, **options})
    assert error.value.code == code


def test_a_store_without_history_has_none(tmp_path: Path):
    master = MasterData.build(pa.table({"id": [1]}), key="id", path=tmp_path)
    assert master.history is None
    assert History.of_schema(pa.schema([("id", pa.int64())])) is None


CHILD = """
    import json, sys
    from pathlib import Path
    import numpy as np
    import pyarrow as pa
    from tidemill.master import MasterData

    KEYS, EACH, BATCH = 100_000, 15, 50_000
    schema = pa.schema([("id", pa.int64()), ("since", pa.int64()), ("until", pa.int64()), ("text", pa.string())])

    def own_bytes():
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))

    def progress(done, rows):
        global most, told
        most, told = max(most, own_bytes()), (done, rows)

    def batches():
        text = pa.array(["some words that make the row wider, and wider, and as wide as rows of this kind are"] * BATCH)
        for at in range(0, KEYS * EACH, BATCH):
            numbers = np.arange(at, at + BATCH)
            since = numbers // KEYS
            yield pa.record_batch([(numbers * 7919) % KEYS, since, since + 1, text], schema=schema)

    def build(rows, **options):
        return MasterData.build(rows, key="id", path=sys.argv[1], history=("since", "until"), **options)

    most, told = 0, None
    build(pa.table({"id": [1], "since": [1], "until": [2], "text": ["b"]}))
    baseline = most = own_bytes()
    master = build(pa.RecordBatchReader.from_batches(schema, batches()), memory="48 MB", progress=progress)
    versions = sum(len(master.history.unfold(page.column("_history"))[0]) for page in master.scan())
    print(json.dumps([most - baseline, master.rows, versions, master.rows * master.row_bytes, told]))
"""


def test_a_build_bigger_than_its_memory_stays_within_it(tmp_path: Path):
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    growth_bytes, keys, found, data_bytes, told = json.loads(ran.stdout)
    assert (keys, found, told) == (100_000, 1_500_000, [1_500_000, 1_500_000])
    assert data_bytes > 3 * 48_000_000
    # As for the joins: a tenth for what no one counts, and a floor for the allocator's arenas.
    assert 0 < growth_bytes < 48_000_000 * 1.1 + 16 * 2**20
