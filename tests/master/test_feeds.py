"""Feeds: each change once, the last of a key counts, a table read again leaves the store equal to it."""

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.core.errors import SpecError, StoreError
from tidemill.master import MasterData, feeds, feeds_difference
from tidemill.master.feeds import apply_once, re_read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    MasterData.build(pa.table({"id": [1, 2, 3], "n": ["a", "b", "c"]}), key="id", path=tmp_path)
    return tmp_path


def contents(path: Path) -> dict[Any, Any]:
    master = MasterData.open(path)
    rows = master.read_batch(range(master.pages)).to_pylist()
    return {row["id"]: row["n"] for row in rows}


def changes(*rows: tuple[int, str | None, str, int]) -> pa.Table:
    ids, ns, ops, times = zip(*rows, strict=True)
    columns = {"id": pa.array(ids, pa.int32()), "n": pa.array(ns, pa.large_string())}
    return pa.table({**columns, "_op": pa.array(ops, pa.string()), "at": times, "_entry": [0] * len(rows)})


def test_a_repeated_position_is_skipped(path: Path):
    rows = changes((1, "A", "update", 0), (4, "d", "insert", 0))
    done = apply_once(path, rows, feed="q", at=7)
    assert (done.how, done.version, done.changes) == ("applied", 2, 2)
    assert apply_once(path, changes((1, "wrong", "update", 0)), feed="q", at=7).how == "already"
    assert apply_once(path, changes((1, "wrong", "update", 0)), feed="q", at=6).how == "already"
    assert contents(path) == {1: "A", 2: "b", 3: "c", 4: "d"}
    assert apply_once(path, changes((1, "B", "update", 0)), feed="another", at=0).how == "applied"
    assert MasterData.open(path).manifest.positions == {"q": 7, "another": 0}
    assert MasterData.open(path).compact().manifest.positions == {"q": 7, "another": 0}


def test_no_changes_make_no_version(path: Path):
    assert apply_once(path, changes((1, "x", "u", 0)).slice(1), feed="q", at=1).how == "nothing"
    assert MasterData.open(path).version == 1


def test_the_last_change_of_a_key_counts(path: Path):
    apply_once(
        path,
        changes(
            (1, "late", "update", 5), (1, "early", "update", 2), (2, None, "delete", 9), (2, "back", "insert", 3),
            (3, None, "delete", 1), (3, "again", "insert", 2), (4, "new", "insert", 1), (4, "newer", "insert", 2),
        ),
        feed="q", at=1, order="at",
    )  # fmt: skip
    assert contents(path) == {1: "late", 3: "again", 4: "newer"}
    assert MasterData.open(path).rows == 3, "an insert that wins replaces"


def test_updates_as_two_rows_and_updates_of_the_key(path: Path):
    """Whatever the order in the batch: the new values beat the old ones of the same moment."""
    rows = changes(
        (1, "A", "update_after", 1), (1, "a", "update_before", 1),
        (2, "b", "update_preimage", 2), (20, "b", "update_postimage", 2),
    )  # fmt: skip
    apply_once(path, rows, feed="q", at=1, order="at")
    assert contents(path) == {1: "A", 3: "c", 20: "b"}


def test_without_order_a_key_comes_once_or_with_inserts_alone(path: Path):
    apply_once(path, changes((9, "x", "insert", 1), (9, "y", "i", 1)), feed="q", at=1)
    assert MasterData.open(path).rows == 5
    with pytest.raises(SpecError, match="order=") as refusal:
        apply_once(path, changes((1, "x", "update", 1), (1, "y", "insert", 1)), feed="q", at=2)
    assert refusal.value.code == "changes_unordered"
    assert MasterData.open(path).version == 2


@pytest.mark.parametrize(
    ("rows", "order", "code"),
    [
        (pa.table({"id": [1], "n": ["x"], "_op": ["upsert"]}), None, "unknown_operation"),
        (pa.table({"id": [1], "n": ["x"], "_op": [1]}), None, "operation_type"),
        (pa.table({"id": [1], "n": ["x"]}), None, "unknown_column_of_changes"),
        (pa.table({"id": [1], "n": ["x"], "_op": ["u"]}), "at", "unknown_column_of_changes"),
        (pa.table({"id": [1], "n": ["x"], "_op": ["u"], "at": pa.nulls(1, pa.int64())}), "at", "null_order"),
        (pa.table({"id": pa.nulls(1, pa.int64()), "n": ["x"], "_op": ["u"]}), None, "null_keys"),
        (pa.table({"id": ["1"], "n": ["x"], "_op": ["u"]}), None, "key_type"),
        (pa.table({"id": [1], "n": [5], "_op": ["u"]}), None, "changes_schema"),
        (pa.table({"id": [1], "_op": ["u"]}), None, "changes_schema"),
    ],
)
def test_what_does_not_fit_is_refused_and_no_position_moves(
    path: Path, rows: pa.Table, order: str | None, code: str
):
    with pytest.raises(SpecError) as refusal:
        apply_once(path, rows, feed="q", at=1, order=order)
    assert refusal.value.code == code
    assert MasterData.open(path).version == 1


def test_a_hash_that_two_keys_of_the_changes_share_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    MasterData.build(pa.table({"id": ["a"], "n": ["a"]}), key="id", path=tmp_path)
    monkeypatch.setattr(
        "tidemill.master.hashing.hash_columns", lambda columns, _: np.zeros(len(columns[0]), dtype=np.int64)
    )
    rows = pa.table({"id": ["b", "c"], "n": ["x", "y"], "_op": ["u", "u"], "at": [1, 2]})
    with pytest.raises(StoreError, match="same hash"):
        apply_once(tmp_path, rows, feed="q", at=1, order="at")


def test_two_feeds_at_once_lose_and_double_nothing(path: Path):
    def feed(name: str, first_key: int) -> None:
        for at in range(8):
            for _ in range(2):  # each batch is run twice
                rows = changes((first_key + at, name, "insert", at))
                apply_once(path, rows, feed=name, at=at)

    threads = [threading.Thread(target=feed, args=("x", 100)), threading.Thread(target=feed, args=("y", 200))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    master = MasterData.open(path)
    assert master.rows == 3 + 16
    assert sorted(contents(path)) == [1, 2, 3, *range(100, 108), *range(200, 208)]
    assert master.manifest.positions == {"x": 7, "y": 7}


def test_a_feeder_killed_at_any_moment_and_started_again_loses_and_doubles_nothing(path: Path):
    """Each run begins with the first batch, as after a crash that left no note of what was done."""
    script = f"""
        import pyarrow as pa
        from tidemill.master.feeds import apply_once
        for at in range(60):
            rows = pa.table({{"id": [100 + at % 7], "n": [str(at)], "_op": ["insert"]}})
            apply_once({str(path)!r}, rows, feed="q", at=at)
            print(at, flush=True)
    """
    for seconds in (0.05, 0.15, 0.25, None):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        if seconds is not None:
            child.stdout.readline()  # the first batch is done or skipped
            time.sleep(seconds)
            child.kill()
        child.communicate()
    assert child.returncode == 0
    master = MasterData.open(path)
    found = master.read_batch(range(master.pages)).column("n").to_pylist()
    assert sorted(found) == sorted(["a", "b", "c", *(str(at) for at in range(60))])


def test_a_table_read_again_leaves_its_rows_and_touches_no_others(path: Path):
    table = pa.table({"n": ["c", "B", "d"], "id": pa.array([3, 2, 4], pa.int32())})
    done = re_read(path, table, feed="folder", at=1)
    assert (done.how, done.changes) == ("applied", 3)
    assert contents(path) == {2: "B", 3: "c", 4: "d"}
    codes = MasterData.open(path).changed_codes(1)
    assert codes is not None
    assert codes.tolist() == [1, 2, 4]
    assert re_read(path, table).how == "nothing"
    assert re_read(path, table, feed="folder", at=1).how == "already"
    assert MasterData.open(path).version == done.version
    moved = re_read(path, table, feed="folder", at=2)
    assert (moved.how, moved.version) == ("nothing", done.version + 1)


def test_parquet_and_readers(path: Path, tmp_path: Path):
    folder = tmp_path / "parquet"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1, 5], "n": ["a", "e"]}), folder / "1.parquet")
    re_read(path, folder)
    assert contents(path) == {1: "a", 5: "e"}
    re_read(
        path,
        pa.table({"id": [7], "n": [None]}, pa.schema([("id", pa.int64()), ("n", pa.string())])).to_reader(),
    )
    assert contents(path) == {7: None}
    re_read(path, lambda: folder)
    assert contents(path) == {1: "a", 5: "e"}


def test_a_source_without_rows_removes_nothing_unless_told(path: Path):
    empty = pa.table({"id": [1], "n": ["a"]}).slice(1)
    with pytest.raises(SpecError, match="no rows") as refusal:
        re_read(path, empty)
    assert refusal.value.code == "empty_source"
    assert re_read(path, empty, may_be_empty=True).how == "applied"
    assert contents(path) == {}
    assert re_read(path, empty).how == "nothing"


def test_other_columns_are_refused(path: Path):
    with pytest.raises(SpecError, match="columns"):
        re_read(path, pa.table({"id": [1], "m": ["a"]}))
    with pytest.raises(SpecError, match="is int64, the store has string"):
        re_read(path, pa.table({"id": [1], "n": [5]}))
    assert not (path / ".reread").exists()


def test_more_changes_than_memory_make_a_build_that_keeps_positions(path: Path):
    apply_once(path, changes((1, "A", "u", 0)), feed="q", at=3)
    big = pa.table({"id": np.arange(50_000), "n": [f"value {i:040d}" for i in range(50_000)]})
    done = re_read(path, big, memory="1 MB", feed="folder", at=8)
    assert done.how == "rebuilt"
    master = MasterData.open(path)
    assert (master.rows, master.version) == (50_000, done.version)
    assert master.manifest.positions == {"q": 3, "folder": 8}
    assert re_read(path, big, memory="1 MB").how == "nothing"


def test_a_change_while_the_table_is_read_is_not_lost(path: Path):
    """The first attempt is stale when it would apply; the second one sees what came."""
    calls: list[int] = []

    def source() -> pa.Table:
        calls.append(1)
        if len(calls) == 1:
            MasterData.open(path).apply(pa.table({"id": [50], "n": ["new"], "_op": ["i"]}))
        return pa.table({"id": [1], "n": ["a"]})

    assert re_read(path, source).how == "applied"
    assert (len(calls), contents(path)) == (2, {1: "a"})


@pytest.mark.parametrize("changed", [0, 5, 11])
def test_a_key_over_several_pages_is_compared_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: int
):
    monkeypatch.setattr(feeds_difference, "_PAGES_AT_A_TIME", 1)
    values = [str(number) * 900 for number in range(10, 22)]
    MasterData.build(pa.table({"id": [5] * 12, "n": values}), key="id", path=tmp_path, page_bytes=4096)
    assert re_read(tmp_path, pa.table({"id": [5] * 12, "n": values})).how == "nothing"
    values[changed] = "other"
    re_read(tmp_path, pa.table({"id": [5] * 12, "n": values}))
    master = MasterData.open(tmp_path)
    assert master.read_batch(range(master.pages)).column("n").to_pylist() == values


ROWS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2)), max_size=60)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=ROWS,
    after=ROWS,
    is_text=st.booleans(),
    width=st.sampled_from([1, 700]),
    pages=st.sampled_from([1, 256]),
)
def test_the_difference_of_any_two_tables_makes_one_of_the_other(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    before: Sequence[tuple[int, int]],
    after: Sequence[tuple[int, int]],
    is_text: bool,
    width: int,
    pages: int,
):
    """Keys with several rows, text and integers, a key over several pages; nothing is changed that was the same."""
    monkeypatch.setattr(feeds_difference, "_PAGES_AT_A_TIME", pages)

    def table(rows: Sequence[tuple[int, int]]) -> pa.Table:
        keys = [f"key {key}" if is_text else key for key, _ in rows]
        values = [None if value == 0 else str(value) * width for _, value in rows]
        return pa.table(
            {"id": pa.array(keys, pa.string() if is_text else pa.int64()), "n": pa.array(values, pa.string())}
        )

    path = tmp_path_factory.mktemp("store")
    first = MasterData.build(table(before), key="id", path=path, page_bytes=4096)
    re_read(path, table(after), may_be_empty=True)
    master = MasterData.open(path)
    found = grouped(master.read_batch(range(master.pages)).to_pylist())
    then, now = grouped(table(before).to_pylist()), grouped(table(after).to_pylist())
    assert found == now
    codes = master.changed_codes(first.version)
    differ = [key for key in then.keys() | now.keys() if then.get(key) != now.get(key)]
    if codes is not None:
        wanted = master.key_form.codes([pa.array(differ, pa.string() if is_text else pa.int64())])[0]
        assert codes.tolist() == sorted(wanted.tolist())
    assert feeds.re_read(path, table(after), may_be_empty=True).how == "nothing"


def grouped(rows: list[dict[str, Any]]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for row in rows:
        found.setdefault(row["id"], []).append(row["n"])
    return found
