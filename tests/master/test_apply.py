"""Changes to a store against a plain dictionary; what is refused, what is left after a kill, what it costs."""

import shutil
import signal
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.core.errors import SpecError, StoreError
from tidemill.master import MasterData, apply, hashing, store
from tidemill.master.layout import versions_on_disk

Key = tuple[Any, ...]
Model = dict[Key, list[int]]

MOST_KEYS = 40

KEYS: dict[str, Any] = {
    "integer": lambda n: (n,),
    "text": lambda n: (f"key {n}",),
    "composite": lambda n: (n % 3, f"key {n // 3}"),
}
TYPES = {"integer": [pa.int64()], "text": [pa.string()], "composite": [pa.int64(), pa.string()]}
WIDTHS = {"narrow": 20, "wide": 900, "wider than a page": 6000}


def table(
    kind: str, width: int, rows: list[tuple[int, int]], operations: list[str] | None = None
) -> pa.Table:
    """Rows of (key number, value), padded, perhaps as changes."""
    keys = [KEYS[kind](number) for number, _ in rows]
    columns = {
        f"k{place}": pa.array([key[place] for key in keys], key_type)
        for place, key_type in enumerate(TYPES[kind])
    }
    columns |= {
        "n": pa.array([n for _, n in rows], pa.int64()),
        "pad": pa.array(["x" * (width + n % 7) for _, n in rows], pa.string()),
    }
    return pa.table(columns | ({} if operations is None else {"_op": pa.array(operations, pa.string())}))


def key_names(kind: str) -> tuple[str, ...]:
    return tuple(f"k{place}" for place in range(len(TYPES[kind])))


def change(model: Model, key: Key, operation: str, value: int) -> None:
    if operation[0] != "i":
        model.pop(key, None)
    if operation[0] != "d":
        model.setdefault(key, []).append(value)


def check(master: MasterData, model: Model) -> None:
    """Everything that a version says about itself, held against the model and against its own pages."""
    told, pages = master.manifest, master.read_pages(range(master.pages))
    names = master.key_columns
    found: Model = {}
    for page in pages:
        for row in page.to_pylist():
            found.setdefault(tuple(row[name] for name in names), []).append(row["n"])
    assert found == model
    assert (told.rows, told.distinct_keys) == (sum(map(len, model.values())), len(model))
    assert told.most_rows_of_a_key >= max(map(len, model.values()), default=0)
    codes = [page.column(master.key).to_pylist() for page in pages]
    assert [c for page in codes for c in page] == sorted(c for page in codes for c in page)
    assert master.index.first_code.tolist() == [page[0] for page in codes]
    ends = [False, *(one[-1] == two[0] for one, two in pairwise(codes))]
    assert master.index.continues.tolist() == ends[: len(codes)]
    assert told.last_code >= max((page[-1] for page in codes), default=-(2**63))
    assert told.most_rows_of_a_page >= max(map(len, codes), default=0)
    assert told.longest_page_bytes == max(master.index.blocks.tolist(), default=0) * 4096
    assert all(
        page <= told.page_bytes // 4096 or len(c) == 1
        for page, c in zip(master.index.blocks, codes, strict=True)
    )
    for number in range(MOST_KEYS):
        key = KEYS[
            "integer"
            if len(names) == 1 and told.code_kind == "identity"
            else "text"
            if len(names) == 1
            else "composite"
        ](number)
        position, rows = master.lookup([pa.array([part]) for part in key])
        assert rows.column("n").to_pylist() == model.get(key, [])
        assert position.tolist() == [0] * rows.num_rows


NUMBERS = st.one_of(st.integers(0, 3), st.integers(0, MOST_KEYS - 1))
OPERATIONS = st.sampled_from(["insert", "update", "delete", "i", "U", "D"])


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(sorted(KEYS)),
    width=st.sampled_from(sorted(WIDTHS)),
    page_bytes=st.sampled_from([4096, 16_384]),
    first=st.lists(NUMBERS, max_size=80),
    rounds=st.lists(st.lists(st.tuples(NUMBERS, OPERATIONS), max_size=25), min_size=1, max_size=4),
    chunk_blocks=st.sampled_from([1, 4, 1024]),
    way=st.sampled_from([(False, 1), (True, 3)]),
    compacts=st.sets(st.integers(0, 3)),
)
def test_any_changes_leave_what_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    width: str,
    page_bytes: int,
    first: list[int],
    rounds: list[list[tuple[int, str]]],
    chunk_blocks: int,
    way: tuple[bool, int],
    compacts: set[int],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(apply, "_CHUNK_BLOCKS", chunk_blocks)
    # Small stores have much garbage soon, and being compacted at once would hide what an apply does wrong.
    monkeypatch.setattr(store, "is_worth_it", lambda _: False)
    path = tmp_path_factory.mktemp("store")
    model: Model = {}
    for value, number in enumerate(first):
        model.setdefault(KEYS[kind](number), []).append(value)
    rows = [(number, value) for value, number in enumerate(first)]
    MasterData.build(table(kind, WIDTHS[width], rows), key=key_names(kind), path=path, page_bytes=page_bytes)
    master = MasterData.open(path, direct=way[0], reads_in_flight=way[1])
    older: list[tuple[MasterData, Model]] = []
    value = len(first)
    try:
        for turn, changes in enumerate(rounds):
            older.append((master, {key: list(values) for key, values in model.items()}))
            for place, (number, operation) in enumerate(changes):
                change(model, KEYS[kind](number), operation.lower(), value + place)
            given_rows = [(number, value + place) for place, (number, _) in enumerate(changes)]
            value += len(changes)
            master = master.apply(table(kind, WIDTHS[width], given_rows, [op for _, op in changes]))
            check(master, model)
            if turn in compacts:
                older.append((master, {key: list(values) for key, values in model.items()}))
                master = master.compact()
                assert len(master.manifest.files) <= 1
                check(master, model)
        assert MasterData.open(path).version == master.version
        for handle, then in older:
            check(handle, then)
            check(MasterData.open(path, handle.version), then)
    finally:
        for handle, _ in [*older, (master, model)]:
            handle.close()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("built")
    MasterData.build(
        table("integer", 60, [(n, n) for n in range(0, 20_000, 2)]), key="k0", path=path, page_bytes=4096
    )
    return path


@pytest.fixture
def path(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "store"))


def test_only_touched_pages_are_read_and_written(path: Path):
    old = MasterData.open(path)
    new = old.apply(table("integer", 60, [(n, -n) for n in (10, 12, 9000, 19_998)], ["update"] * 4))
    assert old.pages_read == 3
    assert [file.bytes for file in new.manifest.files[1:]] == [3 * 4096]
    assert (new.pages, new.rows) == (old.pages, old.rows)
    same = (new.index.file == 0).sum()
    assert same == old.pages - 3
    assert new.lookup(np.array([10, 12, 14, 9000]))[1].column("n").to_pylist() == [-10, -12, 14, -9000]


def test_touched_pages_with_others_between_them_do_not_share_a_page(path: Path):
    old = MasterData.open(path)
    keys = old.index.first_code[[3, 6, 9]].tolist()
    new = old.apply(table("integer", 60, [(key, 0) for key in keys], ["delete", "delete", "update"]))
    codes = new.read_batch(range(new.pages)).column("k0").to_numpy()
    assert (np.diff(codes) > 0).all()
    assert (new.pages, len(codes)) == (old.pages, old.rows - 2)


def test_deletes_of_absent_keys_write_no_page(path: Path):
    old = MasterData.open(path)
    new = old.apply(pa.table({"k0": [1, 3, 99_999, -5], "_op": ["delete"] * 4}))
    assert new.version == 2
    assert [file.name for file in new.manifest.files] == ["versions/000001/pages.bin"]
    assert not (path / "versions/000002/pages.bin").exists()
    assert new.index.offset.tolist() == old.index.offset.tolist()


def test_a_page_that_grows_beyond_its_size_becomes_two_equal_ones(path: Path):
    old = MasterData.open(path)
    page = old.read_page(5).num_rows
    new = old.apply(table("integer", 60, [(int(old.index.first_code[5]) + 1, 7)], ["insert"]))
    sizes = [batch.num_rows for batch in new.read_pages([5, 6])]
    assert sum(sizes) == page + 1
    assert abs(sizes[0] - sizes[1]) <= 1


@pytest.mark.parametrize("number", [1, 2])
def test_damage_is_found_in_every_file_and_the_file_is_named(path: Path, number: int):
    new = MasterData.open(path).apply(table("integer", 60, [(n, -n) for n in (10, 9000)], ["update"] * 2))
    file = path / f"versions/00000{number}/pages.bin"
    content, at = bytearray(file.read_bytes()), 4096
    content[at + 50] ^= 4
    file.write_bytes(content)
    with pytest.raises(StoreError, match=rf"page .*00000{number}/pages\.bin at offset {at} fails") as refusal:
        new.read_rows(0, new.pages)
    assert new.index.file[refusal.value.page] == number - 1
    # A page of the other file has a sound checksum, but not for this place.
    other = (path / f"versions/00000{3 - number}/pages.bin").read_bytes()
    file.write_bytes(content[:at] + other[at : at + 4096] + content[at + 4096 :])
    with pytest.raises(StoreError, match=rf"00000{number}/pages\.bin at offset {at} fails"):
        new.read_rows(0, new.pages)
    file.unlink()
    with pytest.raises(StoreError, match=rf"00000{number}/pages\.bin"):
        MasterData.open(path)


def test_a_delete_of_everything_and_an_insert_into_nothing(path: Path):
    old = MasterData.open(path)
    empty = old.apply(pa.table({"k0": np.arange(20_000), "_op": ["d"] * 20_000}))
    assert (empty.rows, empty.pages, empty.manifest.files, empty.manifest.distinct_keys) == (0, 0, [], 0)
    again = empty.apply(table("integer", 60, [(5, 1), (4, 2), (5, 3)], ["i"] * 3))
    assert [row["n"] for row in again.read_page(0).to_pylist()] == [2, 1, 3]
    assert old.rows == 10_000


def test_too_much_garbage_is_compacted_at_once(path: Path):
    old = MasterData.open(path)
    some = old.apply(table("integer", 60, [(n, -n) for n in range(0, 20_000, 1000)], ["u"] * 20))
    assert 0 < some.garbage_share < 0.3
    assert some.version == 2
    more = some.apply(table("integer", 60, [(n, -n) for n in range(0, 20_000, 100)], ["u"] * 200))
    assert (more.version, more.garbage_share, len(more.manifest.files)) == (4, 0.0, 1)
    assert more.compact() is more


def test_every_key_type_is_matched_by_its_value(tmp_path: Path):
    master = MasterData.build(pa.table({"k": pa.array(["a", "b"]), "n": [1, 2]}), key="k", path=tmp_path)
    changes = pa.table({"k": pa.array(["b", "c"]).dictionary_encode(), "n": [20, 30], "_op": ["u", "i"]})
    assert sorted(row["n"] for row in master.apply(changes).read_page(0).to_pylist()) == [1, 20, 30]


GOOD = {"k0": [1], "n": [1], "pad": ["x"], "_op": ["insert"]}


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({**GOOD, "k0": pa.array([None], pa.int64())}, "null_keys", "1 of 1 rows"),
        ({**GOOD, "_op": ["upsert"]}, "unknown_operation", "1 of 1 changes .* 'upsert'"),
        ({**GOOD, "_op": pa.array([None], pa.string())}, "unknown_operation", "1 of 1"),
        ({**GOOD, "_op": [1]}, "operation_type", "int64"),
        ({**GOOD, "n": [1.5]}, "changes_schema", "'n' is double, the store has int64"),
        ({**GOOD, "more": [1]}, "changes_schema", "'more' is not a column"),
        (
            {"k0": [1, 2], "_op": ["d", "u"]},
            "changes_schema",
            r"1 inserts and updates lack the columns \['n', 'pad'\]",
        ),
        ({"n": [1], "_op": ["d"]}, "unknown_key_column", "k0"),
        ({"k0": [1]}, "no_operation", "_op"),
    ],
)
def test_changes_that_cannot_be_are_refused_before_anything_is_written(
    path: Path, changes: dict[str, Any], code: str, says: str
):
    with pytest.raises(SpecError, match=says) as refusal:
        MasterData.open(path).apply(pa.table(changes))
    assert refusal.value.code == code
    assert versions_on_disk(path) == [1]


def test_the_operation_may_have_another_name(path: Path):
    changes = table("integer", 60, [(0, 5)], ["u"]).rename_columns(["k0", "n", "pad", "what"])
    assert MasterData.open(path).apply(changes, operation="what").lookup(np.array([0]))[1].column(
        "n"
    ).to_pylist() == [5]


def test_a_handle_that_is_not_current_cannot_change_the_store(path: Path):
    old = MasterData.open(path)
    old.apply(pa.table({"k0": [0], "_op": ["d"]}))
    for again in (
        lambda: old.apply(pa.table({"k0": [2], "_op": ["d"]})),
        lambda: MasterData.open(path, 1).apply(pa.table({"k0": [2], "_op": ["d"]})),
    ):
        with pytest.raises(StoreError, match=r"version 2 .* is current") as refusal:
            again()
        assert (refusal.value.code, refusal.value.retryable) == ("stale_version", True)
    assert versions_on_disk(path) == [1, 2]


def test_pages_in_a_given_order_refuse_changes(tmp_path: Path):
    master = MasterData.build(pa.table({"id": [1, 2], "n": [5, 6]}), key="id", path=tmp_path, order_by="n")
    with pytest.raises(SpecError) as refusal:
        master.apply(pa.table({"id": [1], "_op": ["d"]}))
    assert refusal.value.code == "given_order"


@pytest.mark.parametrize("operation", ["insert", "update", "delete"])
def test_a_key_that_has_the_code_of_another_is_refused_not_mixed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
):
    master = MasterData.build(pa.table({"k": ["a", "b"], "n": [1, 2]}), key="k", path=tmp_path)
    real = hashing.hash_columns

    def colliding(columns: list[Any], seed: int) -> Any:
        return real(
            [pa.array(["a" if word == "z" else word for word in columns[0].to_pylist()], pa.large_string())],
            seed,
        )

    monkeypatch.setattr(hashing, "hash_columns", colliding)
    for keys in (["z"], ["b", "z"]):
        with pytest.raises(StoreError, match=r"'a'.*'z'") as refusal:
            master.apply(pa.table({"k": keys, "n": [9] * len(keys), "_op": [operation] * len(keys)}))
        assert refusal.value.code == "hash_collides"
    with pytest.raises(StoreError, match="same hash"):
        master.apply(pa.table({"k": ["a", "z"], "n": [8, 9], "_op": [operation] * 2}))
    assert versions_on_disk(tmp_path) == [1]
    assert MasterData.open(tmp_path).lookup(pa.array(["a"]))[1].column("n").to_pylist() == [1]


KILLS = {
    "while pages are written": "progress = die",
    "before the version has its place": "new_version.version_folder = die",
    "before the switch": "new_version.switch_current = die",
}


@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_apply_leaves_the_old_version(path: Path, moment: str):
    script = f"""
        import os, signal
        import numpy as np
        import pyarrow as pa
        from tidemill.master import MasterData, new_version
        die, progress = lambda *_: os.kill(os.getpid(), signal.SIGKILL), None
        {KILLS[moment]}
        keys = np.arange(0, 20_000, 3)
        changes = pa.table({{"k0": keys, "_op": ["delete"] * len(keys)}})
        MasterData.open({str(path)!r}).apply(changes, progress=progress)
    """
    before = MasterData.open(path)
    expected = before.read_batch(range(before.pages))
    died = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert died.returncode == -signal.SIGKILL
    after = MasterData.open(path)
    assert after.identity == before.identity
    assert after.read_batch(range(after.pages)).equals(expected)
    new = after.apply(pa.table({"k0": [0, 2], "_op": ["d", "d"]}))
    assert new.rows == 9998
    assert not list((path / "versions").glob(".building*"))
