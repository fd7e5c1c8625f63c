"""A version tells which codes it changed, and says that it does not know rather than forget one."""

import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.master import MasterData, changed_codes
from tidemill.master import store as store_module
from tidemill.master.changed_codes import LIST_FILE
from tidemill.master.layout import version_folder

NOW = timedelta(0)
ROWS = 200


def rows(keys: Sequence[int], value: int) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.int64()), "n": pa.array([value] * len(keys), pa.int64())})


def changed(master: MasterData, keys: Sequence[int], value: int, operation: str = "u") -> MasterData:
    return master.apply(
        rows(keys, value).append_column("_op", pa.array([operation] * len(keys), pa.string()))
    )


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MasterData:
    monkeypatch.setattr(store_module, "is_worth_it", lambda _: False)
    return MasterData.build(rows(range(ROWS), 0), key="id", path=tmp_path, page_bytes=4096)


def told(master: MasterData, since: int) -> list[int] | None:
    codes = master.changed_codes(since)
    assert codes is None or codes.dtype == np.int64
    return None if codes is None else codes.tolist()


def test_codes_of_all_versions_in_between_come_once_and_in_order(first: MasterData):
    second = changed(first, [9, 3, 9], 2)
    third = changed(second, [3, -5], 3, "insert")
    fourth = changed(third, [150, 9999], 4, "delete")
    assert told(fourth, 1) == [-5, 3, 9, 150, 9999]
    assert told(fourth, 2) == [-5, 3, 150, 9999]
    assert told(fourth, 3) == [150, 9999]
    assert told(fourth, 4) == []
    assert told(second, 1) == [3, 9], "a handle tells of its own version"


def test_keys_of_text_are_told_by_their_codes(tmp_path: Path):
    table = pa.table({"name": ["a", "b", "c"], "n": [1, 2, 3]})
    master = MasterData.build(table, key="name", path=tmp_path)
    after = master.apply(pa.table({"name": ["b"], "n": [5], "_op": ["u"]}))
    assert told(after, 1) == after.key_form.codes([pa.array(["b"])])[0].tolist()


def test_a_compaction_changes_no_code(first: MasterData):
    compacted = changed(changed(first, [1], 2), [2], 3).compact()
    assert compacted.version == 4
    assert told(compacted, 3) == []
    assert told(compacted, 1) == [1, 2]


def test_an_apply_that_compacts_at_once_tells_its_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store_module, "is_worth_it", lambda _: True)
    master = MasterData.build(rows(range(ROWS), 0), key="id", path=tmp_path, page_bytes=4096)
    after = changed(master, [7], 1)
    assert after.version == 3
    assert told(after, 1) == [7]


def test_a_build_may_have_changed_every_code(first: MasterData):
    changed(first, [1], 2)
    built = MasterData.build(rows(range(ROWS), 5), key="id", path=first.path)
    assert told(built, 2) is None
    assert told(changed(built, [4], 6), 2) is None
    assert told(changed(MasterData.open(first.path), [4], 7), built.version) == [4]


def test_a_version_that_is_not_before_this_one_is_not_known(first: MasterData):
    second = changed(first, [1], 2)
    assert told(second, 3) is None
    assert told(second, 0) is None


def test_a_version_that_was_never_switched_to_is_no_ancestor(first: MasterData):
    current = (first.path / "CURRENT").read_bytes()
    changed(first, [1], 2)
    (first.path / "CURRENT").write_bytes(current)  # as if the power had gone before the switch
    third = changed(MasterData.open(first.path), [5], 3)
    assert third.version == 3
    assert told(third, 1) == [5], "what version 2 changed never became current"
    assert told(third, 2) is None


def test_too_many_codes_are_not_listed(first: MasterData, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(changed_codes, "MOST_CODES", 5)
    second = changed(first, range(5), 2)
    assert told(second, 1) == [0, 1, 2, 3, 4]
    third = changed(second, range(6), 3)
    assert not (version_folder(first.path, 3) / LIST_FILE).exists()
    assert told(third, 2) is None
    fourth = changed(third, range(3), 4)
    assert told(fourth, 3) == [0, 1, 2]
    assert told(changed(fourth, range(10, 13), 5), 3) is None, "lists too long together"


def test_lists_survive_the_versions_that_expire(first: MasterData):
    latest = first
    for value in range(2, 7):
        latest = changed(latest, [value, value * 10], value)
    assert latest.expire(keep_last=1, older_than=NOW).versions == [1, 2, 3, 4, 5]
    assert told(latest, 1) == [2, 3, 4, 5, 6, 20, 30, 40, 50, 60]
    assert told(changed(latest, [100], 7), 4) == [5, 6, 50, 60, 100]


def test_kept_lists_are_bounded_in_number_and_bytes(first: MasterData, monkeypatch: pytest.MonkeyPatch):
    latest = first
    for value in range(2, 8):
        latest = changed(latest, [value], value)
    monkeypatch.setattr(changed_codes, "KEPT_LISTS", 3)
    latest.expire(keep_last=1, older_than=NOW)
    assert sorted(file.stem for file in (first.path / "changed").iterdir()) == ["000004", "000005", "000006"]
    assert told(latest, 3) == [4, 5, 6, 7]
    assert told(latest, 2) is None
    monkeypatch.setattr(changed_codes, "KEPT_BYTES", 2 * 56)
    latest.expire(keep_last=1, older_than=NOW)
    assert told(latest, 4) == [5, 6, 7]
    assert told(latest, 3) is None


def test_a_kept_list_says_nothing_of_a_version_that_is_there(first: MasterData):
    changed(first, [1], 2)
    lists = first.path / "changed"
    lists.mkdir()
    changed_codes.write_changed(lists, 3, made_from=2, codes=np.array([1]))
    (lists / LIST_FILE).rename(lists / "000003.bin")
    built = MasterData.build(rows(range(ROWS), 5), key="id", path=first.path)
    assert built.version == 3
    assert told(built, 2) is None


@pytest.mark.parametrize(
    "damage", ["cut", "longer", "flip", "head", "missing", "of another version", "empty"]
)
def test_a_list_that_cannot_be_trusted_is_not_known(first: MasterData, damage: str):
    second = changed(first, [1, 2, 3], 2)
    file = version_folder(first.path, 2) / LIST_FILE
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "of another version":
        changed(second, [4], 3)
        shutil.copy(version_folder(first.path, 3) / LIST_FILE, file)
    else:
        content[-1] ^= damage == "flip"
        content[24] ^= damage == "head"  # made from another version
        end = {"cut": -8, "longer": None, "empty": 0}.get(damage)
        file.write_bytes(bytes(content[:end]) + (b"\0" * 8 if damage == "longer" else b""))
    assert told(second, 1) is None


STEPS = st.one_of(
    st.lists(st.integers(-20, 220), max_size=8), st.sampled_from(["compact", "build", "expire", "die"])
)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=8))
def test_rows_of_codes_that_are_not_told_are_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[list[int] | str],
):
    """Whatever happens to a store: from each version to each later one, no change is missing from the list."""
    monkeypatch.setattr(store_module, "is_worth_it", lambda _: False)
    path = tmp_path_factory.mktemp("store")
    master = MasterData.build(rows(range(ROWS), 0), key="id", path=path, page_bytes=4096)
    seen = {1: contents(master)}
    for value, step in enumerate(steps, start=1):
        current = (path / "CURRENT").read_bytes()
        if step == "expire":
            master.expire(keep_last=1, older_than=NOW)
        elif step == "build":
            master = MasterData.build(rows(range(value, ROWS), value), key="id", path=path, page_bytes=4096)
        elif step == "die":
            changed(master, [value], value)
            (path / "CURRENT").write_bytes(current)
        else:
            master = master.compact() if isinstance(step, str) else changed(master, step, value)
        seen[master.version] = contents(master)
        for since, then in seen.items():
            codes = master.changed_codes(since)
            if codes is not None:
                now = seen[master.version]
                differ = {key for key in then.keys() | now.keys() if then.get(key) != now.get(key)}
                assert differ <= set(codes.tolist())


def contents(master: MasterData) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in master.read_batch(range(master.pages)).to_pylist():
        found.setdefault(row["id"], []).append(row["n"])
    return found
