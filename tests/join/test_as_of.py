"""Rows meet the version valid at their time: held against a nested loop over flat versions, through four joins."""

import pickle
from itertools import pairwise, product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import SpecError
from tidemill.core.memory import MemoryBudget
from tidemill.join.as_of import AsOf
from tidemill.join.catalog import JOINS
from tidemill.join.drive import drive
from tidemill.master import MasterData

STREAM = pa.schema([("n", pa.int64()), ("key", pa.int64()), ("at", pa.int64())])
FLAT = pa.schema(
    [
        ("since", pa.int64()),
        ("id", pa.int64()),
        ("until", pa.int64()),
        ("name", pa.string()),
        ("x", pa.int32()),
    ]
)

Row = dict[str, Any]


@st.composite
def versions_of_a_key(draw: st.DrawFn, key: int) -> list[Row]:
    """Any versions that do not overlap: with gaps and without, the last one open or not."""
    bounds = sorted(draw(st.lists(st.integers(-3, 12), unique=True, max_size=8)))
    rows: list[Row] = [
        {"id": key, "since": a, "until": b} for a, b in pairwise(bounds) if draw(st.integers(0, 3))
    ]
    if bounds and draw(st.booleans()):
        rows.append({"id": key, "since": bounds[-1], "until": None})
    for row in rows:
        row["name"] = draw(st.sampled_from([None, "", "y", "z" * 900]))
        row["x"] = draw(st.one_of(st.none(), st.integers(0, 9)))
    return rows


@st.composite
def masters(draw: st.DrawFn) -> list[Row]:
    rows = [row for key in range(4) for row in draw(versions_of_a_key(key))]
    return draw(st.permutations(rows))


# Every key at every time, missing ones too: a random stream would seldom meet the bounds.
MOMENTS = list(product([None, *range(6)], [None, *range(-4, 14)]))


def nested_loop(stream: list[Row], versions: list[Row], how: str) -> list[Row]:
    output = []
    for row in stream:
        found = [
            version
            for version in versions
            if row["key"] == version["id"]
            and row["at"] is not None
            and version["since"] <= row["at"]
            and (version["until"] is None or row["at"] < version["until"])
        ]
        assert len(found) <= 1
        if how == "inner":
            output += [{**row, **version} for version in found]
        elif how == "left":
            nothing = dict.fromkeys(FLAT.names)
            output.append({**row, **(found[0] if found else nothing), "met": bool(found)})
        elif bool(found) == (how == "semi"):
            output.append(row)
    return output


def joined(name: str, master: MasterData, as_of: AsOf, batches: list[pa.RecordBatch]) -> list[Row]:
    kind: Any = JOINS[name]
    join = kind(master, as_of.plan, MemoryBudget(2_000_000))
    # As in a Spark worker: what picks has travelled, and has picked before.
    picks = pickle.loads(pickle.dumps(as_of))
    rows = [row for report in drive(join, batches) for out in report.outputs for row in _picked(picks, out)]
    return sorted(rows, key=lambda row: row["n"])


def _picked(as_of: AsOf, batch: pa.RecordBatch) -> list[Row]:
    picked = as_of.pick(batch)
    picked.validate(full=True)
    assert picked.schema.equals(as_of.output_schema)
    return picked.to_pylist()


@pytest.mark.parametrize("name", ["tide", "moij", "mesh", "reference"])
@settings(max_examples=25, deadline=None)
@given(rows=masters(), seed=st.integers(0, 99), how=st.sampled_from(["inner", "left", "semi", "anti"]))
def test_every_join_meets_the_version_valid_at_its_time(name, rows, seed, how):
    stream = Random(seed).sample(MOMENTS, len(MOMENTS))
    batch = pa.RecordBatch.from_pylist(
        [{"n": n, "key": key, "at": at} for n, (key, at) in enumerate(stream)], STREAM
    )
    cut = seed * len(stream) // 99
    wished = ["x", "id", "until", "name", "since"] if how in ("inner", "left") else None
    with TemporaryDirectory() as folder:
        table = pa.Table.from_pylist(rows, FLAT)
        master = MasterData.build(table, key="id", path=folder, history=("since", "until"), page_bytes=4096)
        as_of = AsOf.of(
            STREAM,
            master,
            stream_key="key",
            time="at",
            how=how,
            columns=wished,
            matched_as="met" if how == "left" else None,
        )
        found = joined(name, master, as_of, [batch.slice(0, cut), batch.slice(cut)])
    assert found == nested_loop(batch.to_pylist(), rows, how)


def test_bounds_gaps_and_open_ends(tmp_path: Path):
    """Valid from its first moment to before its last; nothing in the gap; the open one for ever."""
    rows = {"id": [1, 1, 1], "since": [10, 20, 40], "until": [20, 30, None], "x": [1, 2, 4]}
    master = MasterData.build(pa.table(rows), key="id", path=tmp_path, history=("since", "until"))
    times = [9, 10, 19, 20, 29, 30, 39, 40, 2**63 - 1, -(2**63), None]
    stream = pa.RecordBatch.from_pydict(
        {"n": range(len(times)), "key": [1] * len(times), "at": times}, schema=STREAM
    )
    as_of = AsOf.of(STREAM, master, stream_key="key", time="at", how="left", columns={"x": "version"})
    found = joined("tide", master, as_of, [stream])
    assert [row["version"] for row in found] == [None, 1, 1, 2, 2, None, None, 4, 4, None, None]


def test_names_of_the_stream_and_a_text_key(tmp_path: Path):
    """The stream may use the names that the store keeps for itself; real keys are compared."""
    rows = {"sku": ["a", "a"], "since": [1, 5], "until": [5, None], "x": [1, 2]}
    master = MasterData.build(pa.table(rows), key="sku", path=tmp_path, history=("since", "until"))
    schema = pa.schema(
        [("n", pa.int64()), ("_history", pa.string()), ("__history", pa.int64()), ("sku", pa.int8())]
    )
    stream = pa.RecordBatch.from_pydict(
        {"n": [0, 1, 2], "_history": ["a", "b", "a"], "__history": [7, 7, 0], "sku": [3, 3, 3]}, schema=schema
    )
    as_of = AsOf.of(
        schema, master, stream_key="_history", time="__history", how="left", columns={"x": "x", "sku": "name"}
    )
    found = joined("moij", master, as_of, [stream])
    assert [(row["x"], row["name"], row["sku"]) for row in found] == [
        (2, "a", 3),
        (None, None, 3),
        (None, None, 3),
    ]


SECONDS, NANOS, TOKYO = pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC"), pa.timestamp("us", "Asia/Tokyo")
WALL_S, WALL_MS, WALL_US = pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us")


@pytest.mark.parametrize(
    ("history", "begin", "time", "at", "is_valid"),
    [
        (SECONDS, "2024-03-01 12:00Z", TOKYO, "2024-03-01 21:00+09:00", True),
        (SECONDS, "2024-03-01 12:00Z", TOKYO, "2024-03-01 20:59+09:00", False),
        (NANOS, "2024-03-01 12:00Z", SECONDS, "2024-03-01 12:00Z", True),
        (NANOS, "2024-03-01 12:00Z", SECONDS, "2999-01-01 00:00Z", True),  # beyond what nanoseconds hold
        (NANOS, "2024-03-01 12:00Z", SECONDS, "1001-01-01 00:00Z", False),
        (WALL_S, "2024-03-01 12:00", WALL_MS, "2024-03-01 11:59:59.999", False),
        (
            WALL_S,
            "1901-03-01 12:00",
            WALL_MS,
            "1901-03-01 11:59:59.999",
            False,
        ),  # before 1970 numbers are negative
        (WALL_S, "2024-03-01 12:00", WALL_MS, "2024-03-01 12:00:00.000", True),
        (WALL_US, "2024-03-01 12:00", pa.date32(), "2024-03-01", False),
        (WALL_US, "2024-03-01 12:00", pa.date64(), "2024-03-02", True),
        (pa.date32(), "2024-03-01", WALL_US, "2024-02-29 23:59:59.999999", False),
        (pa.date32(), "2024-03-01", WALL_US, "2024-03-01 00:00", True),
        (pa.date64(), "2024-03-01", pa.date32(), "2024-03-01", True),
        (pa.int16(), "2", pa.uint32(), "3", True),
        (pa.int16(), "2", pa.int64(), "1", False),
    ],
)
def test_times_of_other_units_are_compared_exactly(tmp_path: Path, history, begin, time, at, is_valid):
    since = pa.array([begin]).cast(history)
    table = pa.table({"id": [1], "since": since, "until": pa.nulls(1, history), "x": [5]})
    master = MasterData.build(table, key="id", path=tmp_path, history=("since", "until"))
    schema = pa.schema([("n", pa.int64()), ("key", pa.int64()), ("at", time)])
    stream = pa.RecordBatch.from_arrays(
        [pa.array([0]), pa.array([1]), pa.array([at]).cast(time)], schema=schema
    )
    as_of = AsOf.of(schema, master, stream_key="key", time="at", how="left", columns=["since", "x"])
    (row,) = joined("tide", master, as_of, [stream])
    assert (row["since"], row["x"]) == ((since[0].as_py(), 5) if is_valid else (None, None))


@pytest.fixture
def prices(tmp_path: Path) -> MasterData:
    at = pa.array(["2024-03-01 12:00Z"]).cast(pa.timestamp("us", "UTC"))
    table = pa.table({"id": [1], "since": at, "until": pa.nulls(1, at.type), "x": [5]})
    return MasterData.build(table, key="id", path=tmp_path / "prices", history=("since", "until"))


def test_what_cannot_be_compared_is_refused(prices: MasterData, tmp_path: Path):
    def refusal(code: str, master: MasterData = prices, **wish: Any) -> str:
        stream = pa.schema([("key", pa.int64()), ("at", wish.pop("type", pa.timestamp("us", "UTC")))])
        with pytest.raises(SpecError) as error:
            AsOf.of(stream, master, stream_key="key", **{"time": "at", **wish})
        assert error.value.code == code
        return str(error.value)

    told = refusal("time_type", type=pa.timestamp("us"))
    assert "'at' has type timestamp[us], 'since' of the master data has timestamp[us, tz=UTC]" in told
    refusal("time_type", type=pa.date32())
    refusal("time_type", type=pa.int64())
    refusal("time_type", type=pa.uint64())
    refusal("time_type", type=pa.string())
    assert "did you mean 'at'" in refusal("unknown_time_column", time="att")
    refusal("unknown_master_column", columns=["y"])
    refusal("column_twice", columns={"x": "at"})
    plain = MasterData.build(pa.table({"id": [1]}), key="id", path=tmp_path / "plain")
    assert "history=" in refusal("no_history", master=plain)
