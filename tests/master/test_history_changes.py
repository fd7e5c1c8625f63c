"""Changes of versions: held against a plain loop over dictionaries, however they are cut into applies."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import SpecError
from tidemill.master import MasterData

SCHEMA = pa.schema([("id", pa.string()), ("since", pa.int32()), ("until", pa.int32()), ("x", pa.int64())])
CHANGES = SCHEMA.append(pa.field("_op", pa.string()))
PAIR = ("since", "until")

Versions = dict[tuple[str, int], dict[str, Any]]


class OverlapError(Exception):
    """A change that the store must refuse."""


def applied(versions: Versions, change: dict[str, Any]) -> None:
    """One change, as the docstring has it, to versions by key and begin."""
    change = dict(change)
    operation, key, since = change.pop("_op"), change["id"], change["since"]
    if operation == "delete":
        gone = [at for at in versions if at[0] == key and since in (None, at[1])]
        for at in gone:
            del versions[at]
        return
    if operation == "update":
        versions.pop((key, since), None)
    if (key, since) in versions:
        raise OverlapError
    later = sorted(at[1] for at in versions if at[0] == key and at[1] > since)
    earlier = sorted(at[1] for at in versions if at[0] == key and at[1] < since)
    if later and change["until"] is None:
        change["until"] = later[0]
    if earlier and versions[key, earlier[-1]]["until"] is None:
        versions[key, earlier[-1]]["until"] = since
    if (later and change["until"] > later[0]) or (earlier and versions[key, earlier[-1]]["until"] > since):
        raise OverlapError
    versions[key, since] = change


def content(master: MasterData) -> list[dict[str, Any]]:
    assert master.history is not None
    rows = [row for page in master.scan() for row in master.history.flat(page).to_pylist()]
    for row in rows:
        row.pop("_code", None)
    return rows


def apply(master: MasterData, changes: list[dict[str, Any]]) -> MasterData:
    return master.apply(pa.Table.from_pylist(changes, CHANGES))


def build(folder: Path | str, rows: list[dict[str, Any]]) -> MasterData:
    return MasterData.build(
        pa.Table.from_pylist(rows, SCHEMA), key="id", path=folder, history=PAIR, page_bytes=4096
    )


@st.composite
def changes(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Half of them alter one key; versions are short, so that not everything overlaps."""
    made = []
    for number in range(draw(st.integers(1, 14))):
        operation = draw(st.sampled_from(["insert", "insert", "update", "delete"]))
        since = draw(st.integers(0, 12))
        until = draw(st.sampled_from([None, None, since + 1, since + 2]))
        if operation == "delete" and draw(st.booleans()):
            since = None
        made.append(
            {
                "id": draw(st.sampled_from("aaabc")),
                "since": since,
                "until": until,
                "x": number,
                "_op": operation,
            }
        )
    return made


@settings(max_examples=150, deadline=None)
@given(made=changes(), cut=st.integers(0, 14))
def test_changes_leave_what_a_plain_loop_leaves_in_one_apply_or_two(made, cut):
    first = [
        {"id": "a", "since": 2, "until": 5, "x": 100},
        {"id": "a", "since": 8, "until": None, "x": 101},
        {"id": "d", "since": 0, "until": 1, "x": 102},
    ]
    versions: Versions = {(row["id"], row["since"]): dict(row) for row in first}
    with TemporaryDirectory() as folder:
        master = build(folder, first)
        try:
            for change in made:
                applied(versions, change)
        except OverlapError:
            with pytest.raises(SpecError) as error:
                apply(master, made)
            assert error.value.code == "overlapping_versions"
            assert MasterData.open(folder).version == 1
            return
        for part in (made[:cut], made[cut:]):
            if part:
                master = apply(master, part)
        found = content(master)
        assert master.rows == master.manifest.distinct_keys == len({at[0] for at in versions})
    order = sorted(versions, key=lambda at: (at[0], -at[1]))
    assert sorted(found, key=lambda row: (row["id"], -row["since"])) == [versions[at] for at in order]
    for key in {row["id"] for row in found}:
        begins = [row["since"] for row in found if row["id"] == key]
        assert begins == sorted(begins, reverse=True), (
            "the newest first, as the kernel that finds them expects"
        )


def test_a_feed_of_from_now_on_rows_closes_what_was_valid(tmp_path: Path):
    master = build(tmp_path, [{"id": "a", "since": 1, "until": None, "x": 1}])
    master = apply(master, [{"id": "a", "since": 5, "until": None, "x": 2, "_op": "insert"}])
    assert [(row["since"], row["until"], row["x"]) for row in content(master)] == [(5, None, 2), (1, 5, 1)]
    master = apply(master, [{"id": "a", "since": 5, "_op": "delete"}])
    assert [(row["since"], row["until"]) for row in content(master)] == [(1, 5)], "nothing opens again"
    master = apply(master, [{"id": "a", "since": None, "_op": "delete"}])
    assert (content(master), master.rows) == ([], 0)


def test_refused_changes_are_counted_and_change_nothing(tmp_path: Path):
    def refusal(*rows: dict[str, Any]) -> SpecError:
        with pytest.raises(SpecError) as error:
            apply(master, [{"_op": "insert", **row} for row in rows])
        assert MasterData.open(tmp_path).version == 1
        return error.value

    master = build(tmp_path, [{"id": "a", "since": 1, "until": 9, "x": 1}])
    error = refusal({"id": "a", "since": 8, "until": 10}, {"id": "a", "since": 1}, {"id": "b", "since": 1})
    assert (error.code, error.versions, error.keys) == ("overlapping_versions", 2, ["a", "a"])
    error = refusal({"id": "c", "since": None}, {"id": "b", "since": 1})
    assert (error.code, error.versions, error.keys) == ("null_valid_from", 1, ["c"])
    error = refusal({"id": "b", "since": 3, "until": 3}, {"id": "c", "since": 3, "until": 2})
    assert (error.code, error.versions, error.keys) == ("empty_version", 2, ["b", "c"])
    with pytest.raises(SpecError, match="deletes do with the key and 'since' alone"):
        master.apply(pa.table({"id": ["a"], "_op": ["delete"]}))
    assert content(master) == [{"id": "a", "since": 1, "until": 9, "x": 1}]


def test_deletes_need_the_key_and_the_begin_alone(tmp_path: Path):
    master = build(tmp_path, [{"id": "a", "since": 1, "until": 2}, {"id": "a", "since": 2, "until": 3}])
    gone = master.apply(pa.table({"id": ["a"], "since": pa.array([2], pa.int32()), "_op": ["d"]}))
    assert [row["since"] for row in content(gone)] == [1]
    assert [row["since"] for row in content(master)] == [2, 1], "a handle keeps its version"
