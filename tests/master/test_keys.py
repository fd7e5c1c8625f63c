"""Keys of every type: equal ones meet, others never do, whatever their codes are."""

import datetime as dt
import uuid
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.core.errors import InternalError, SpecError
from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import JOINS, make_join
from tidemill.join.drive import drive
from tidemill.join.output import How
from tidemill.join.protocol import StepReport
from tidemill.master import MasterData, hashing
from tidemill.master.keys import KeyForm

UTC = dt.UTC
IDS = [uuid.UUID(int=n) for n in (7, 8, 9, 2**127)]
DAYS = [dt.date(2024, 2, 29), dt.date(1, 1, 1), dt.date(1969, 12, 31)]
TIMES = [dt.datetime(2024, 2, 29, 1, 2, 3), dt.datetime(1969, 12, 31, 23, 59, 59)]  # noqa: DTZ001
PRICES = [Decimal("1.50"), Decimal("-0.01"), Decimal("0.00")]
WORDS = ["anvil", "", "Größe", "a longer word than eight bytes", "a longer word than eight byteS"]

# Master type, stream type, keys that both can hold, a stream key that the master lacks.
KINDS: dict[str, tuple[pa.DataType, pa.DataType, list[Any], Any]] = {
    "int32 for int64": (pa.int64(), pa.int32(), [3, -4, 0], 5),
    "uint64": (pa.uint64(), pa.uint64(), [3, 2**63 - 1, 2**63, 2**64 - 1], 2**64 - 2),
    "int64 for uint64": (pa.uint64(), pa.int64(), [3, 2**63 - 1], -1),
    "uint64 for int64": (pa.int64(), pa.uint64(), [3, 2**63 - 1], 2**64 - 1),
    "int8": (pa.int8(), pa.int64(), [3, -4], 300),
    "string": (pa.string(), pa.string(), WORDS, "bolt"),
    "large string for string": (pa.string(), pa.large_string(), WORDS, "bolt"),
    "dictionary for string": (pa.large_string(), pa.dictionary(pa.int8(), pa.string()), WORDS, "bolt"),
    "string view": (pa.string_view(), pa.string(), WORDS, "bolt"),
    "binary": (pa.binary(), pa.large_binary(), [b"\0", b"\0\0", b""], b"\0\0\0"),
    "uuid bytes": (pa.binary(16), pa.binary(16), [i.bytes for i in IDS], bytes(16)),
    "uuid bytes of any length": (pa.binary(16), pa.binary(), [i.bytes for i in IDS], b"short"),
    "uuid type": (pa.uuid(), pa.binary(16), [i.bytes for i in IDS], bytes(16)),
    "uuid strings": (pa.string(), pa.string(), [str(i) for i in IDS], str(uuid.UUID(int=1))),
    "decimal": (pa.decimal128(10, 2), pa.decimal128(10, 2), PRICES, Decimal("9.99")),
    "decimal of finer scale": (pa.decimal128(10, 2), pa.decimal128(20, 5), PRICES, Decimal("1.50001")),
    "decimal of coarser scale": (pa.decimal256(60, 9), pa.decimal128(38, 2), PRICES, Decimal("1e30")),
    "date": (pa.date32(), pa.date64(), DAYS, dt.date(2000, 1, 1)),
    "timestamp": (pa.timestamp("us"), pa.timestamp("us"), TIMES, dt.datetime(2000, 1, 1)),  # noqa: DTZ001
    "finer timestamp": (pa.timestamp("s"), pa.timestamp("us"), TIMES, dt.datetime(1, 1, 1, 0, 0, 0, 1)),  # noqa: DTZ001
    "instants of two zones": (
        pa.timestamp("ms", "UTC"),
        pa.timestamp("us", "Europe/Berlin"),
        [moment.replace(tzinfo=UTC) for moment in TIMES],
        dt.datetime(2000, 1, 1, tzinfo=UTC),
    ),
}


def master_of(path: Path, keys: list[Any], kind: pa.DataType) -> MasterData:
    table = pa.table({"k": pa.array(keys, kind), "n": pa.array(range(len(keys)), pa.int64())})
    return MasterData.build(table, key="k", path=path, page_bytes=4096)


def joined(
    name: str, master: MasterData, batch: pa.RecordBatch, on: Any, how: How, memory: int = 10**6
) -> tuple[Counter[tuple[Any, ...]], Counter[str]]:
    """Output rows and fates of one batch."""
    join = make_join(name, master, batch.schema, stream_key=on, how=how, budget=MemoryBudget(memory))
    reports: list[StepReport] = list(drive(join, [batch]))
    rows = Counter(tuple(row.values()) for r in reports for output in r.outputs for row in output.to_pylist())
    names = ("rows_in", "emitted_rows", "dropped_rows", "unmatched")
    return rows, Counter({fate: sum(getattr(r, fate) for r in reports) for fate in names})


@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("kind", KINDS)
def test_equal_keys_meet_and_others_do_not(tmp_path: Path, kind: str, how: How):
    master_type, stream_type, keys, absent = KINDS[kind]
    master = master_of(tmp_path, [*keys, keys[0]], master_type)
    asked = [absent, None, *keys, keys[0]]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(asked, stream_type), pa.array(range(len(asked)))], ["s", "r"]
    )
    rows, fates = joined("cache", master, batch, "s", how)
    assert (rows, fates) == joined("reference", master, batch, "s", how)
    assert fates["unmatched"] == 2
    if how == "inner":
        assert sorted(row[1] for row in rows.elements()) == sorted([2, *range(2, len(asked)), len(asked) - 1])


@pytest.mark.parametrize("name", ["cache", "reference"])
def test_a_composite_key_matches_only_as_a_whole(tmp_path: Path, name: str):
    table = pa.table({"store": [1, 1, 2], "sku": ["a", "bc", "a"], "price": [10, 20, 30]})
    master = MasterData.build(table, key=("store", "sku"), path=tmp_path)
    assert (master.key_columns, master.manifest.code_kind) == (("store", "sku"), "hash64")
    stream = pa.RecordBatch.from_arrays(
        [
            pa.array([1, 2, 2, 1, None, 1], pa.int16()),
            pa.array(["a", "a", "bc", None, "a", "bc"], pa.large_string()),
        ],
        ["s", "k"],
    )
    rows, fates = joined(name, master, stream, ("s", "k"), "inner")
    assert rows == Counter([(1, "a", 10), (2, "a", 30), (1, "bc", 20)])
    assert fates["unmatched"] == 3


def test_chosen_columns_may_name_the_key_and_never_the_code(tmp_path: Path):
    master = master_of(tmp_path, ["a", "b"], pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array(["b"])], ["s"])
    join = make_join(
        "cache", master, batch.schema, stream_key="s", columns={"k": "key"}, budget=MemoryBudget(10**6)
    )
    assert [r.to_pylist() for report in drive(join, [batch]) for r in report.outputs] == [
        [{"s": "b", "key": "b"}]
    ]
    with pytest.raises(SpecError, match="valid: k, n"):
        make_join(
            "cache", master, batch.schema, stream_key="s", columns=["_code"], budget=MemoryBudget(10**6)
        )


@pytest.mark.parametrize(
    ("master_type", "stream_type"),
    [
        (pa.date32(), pa.timestamp("us")),
        (pa.timestamp("us"), pa.date32()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.string(), pa.binary()),
        (pa.string(), pa.int64()),
        (pa.int64(), pa.decimal128(10, 0)),
        (pa.int64(), pa.float64()),
        (pa.int64(), pa.bool_()),
    ],
)
def test_types_that_cannot_be_equal_are_refused(tmp_path: Path, master_type: Any, stream_type: Any):
    master = master_of(tmp_path, [], master_type)
    with pytest.raises(SpecError) as refusal:
        make_join(
            "cache", master, pa.schema([("s", stream_type)]), stream_key="s", budget=MemoryBudget(10**6)
        )
    assert refusal.value.code == "key_type"


def test_as_many_stream_columns_as_the_key_has(tmp_path: Path):
    master = MasterData.build(pa.table({"a": [1], "b": [2]}), key=["a", "b"], path=tmp_path)
    with pytest.raises(SpecError, match=r"1 columns .* key of 2") as refusal:
        make_join("cache", master, pa.schema([("s", pa.int64())]), stream_key="s", budget=MemoryBudget(10**6))
    assert refusal.value.code == "key_columns"
    for key in ((), ("a", "a")):
        with pytest.raises(SpecError, match="different columns"):
            MasterData.build(pa.table({"a": [1], "b": [2]}), key=key, path=tmp_path)


def test_codes_are_the_same_for_ever():
    """These numbers are on users' disks: a change needs a new format version."""
    columns = [pa.array(["", "a", "12345678", "123456789"]), pa.array([0, 1, -1, 2**62])]
    assert hashing.hash_columns(columns[:1], 0).tolist() == GOLDEN_TEXT
    assert hashing.hash_columns(columns, 1).tolist() == GOLDEN_BOTH
    assert hashing.hash_columns([columns[0].slice(2)], 0).tolist() == GOLDEN_TEXT[2:]


GOLDEN_TEXT = [0, 2862674337843487742, 917085800033989602, 2428654826398786187]
GOLDEN_BOTH = [7876806256502950614, 6004039258682909653, 5256791799261115844, 7219598819531498942]


@given(st.integers(0, 63), st.binary(min_size=1, max_size=24), st.integers(0, 191))
def test_each_bit_of_a_key_moves_many_bits_of_its_code(seed: int, key: bytes, bit: int):
    other = bytearray(key)
    other[bit // 8 % len(key)] ^= 1 << bit % 8
    one, two = hashing.hash_columns([pa.array([key, bytes(other)])], seed).tolist()
    assert ((one ^ two) & (2**64 - 1)).bit_count() >= 8


@pytest.fixture
def heavy_collisions(monkeypatch: pytest.MonkeyPatch) -> None:
    real = hashing.hash_columns
    monkeypatch.setattr(hashing, "hash_columns", lambda columns, seed: real(columns, seed) % 8)


WORD = st.sampled_from([f"w{n}" for n in range(40)])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    distinct=st.lists(WORD, max_size=4, unique=True),
    copies=st.integers(1, 30),
    asked=st.lists(st.one_of(st.none(), WORD), max_size=60),
    how=st.sampled_from(get_args(How)),
    memory=st.sampled_from([80_000, 10**6]),
    name=st.sampled_from(sorted(set(JOINS) - {"reference"})),
)
def test_collisions_never_give_a_wrong_row(
    heavy_collisions: None,
    tmp_path_factory: pytest.TempPathFactory,
    distinct: list[str],
    copies: int,
    asked: list[str | None],
    how: How,
    memory: int,
    name: str,
):
    """Forty words share eight codes, so that most stream keys are false candidates."""
    keys = [word for word in distinct for _ in range(copies)]
    table = pa.table({"k": pa.array(keys, pa.string()), "pad": ["x" * 900] * len(keys)})
    master = MasterData.build(table, key="k", path=tmp_path_factory.mktemp("m"), page_bytes=4096)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(asked, pa.string()), pa.array(range(len(asked)))], ["s", "r"]
    )
    assert joined(name, master, batch, "s", how, memory) == joined("reference", master, batch, "s", how)


def test_a_build_takes_the_first_seed_without_a_collision(heavy_collisions: None, tmp_path: Path):
    rng = np.random.default_rng(1)
    table = pa.table({"k": [f"w{n}" for n in rng.integers(0, 4, 500)], "n": range(500)})
    master = MasterData.build(table, key="k", path=tmp_path, memory=3000)
    assert master.manifest.distinct_keys == 4
    codes, _ = master.key_form.codes([pa.array(["w0", "w1", "w2", "w3"])])
    assert len(set(codes.tolist())) == 4
    rows = [row for page in range(master.pages) for row in master.read_page(page).to_pylist()]
    assert Counter((row["k"], row["n"]) for row in rows) == Counter(
        (row["k"], row["n"]) for row in table.to_pylist()
    )
    for word in ("w0", "w3"):
        numbers = [row["n"] for row in rows if row["k"] == word]
        assert numbers == sorted(numbers), "equal keys keep their order"


def test_a_hash_that_always_collides_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(hashing, "hash_columns", lambda columns, seed: np.zeros(len(columns[0]), np.int64))
    with pytest.raises(InternalError, match="64 seeds"):
        master_of(tmp_path, ["a", "b"], pa.string())
    assert list((tmp_path / "versions").iterdir()) == []


def test_a_source_column_named_like_the_codes_is_refused(tmp_path: Path):
    with pytest.raises(SpecError, match="_code"):
        MasterData.build(pa.table({"k": ["a"], "_code": [1]}), key="k", path=tmp_path)


def test_a_form_survives_in_the_schema():
    schema = pa.schema([("k", pa.string()), ("d", pa.decimal128(9, 2))])
    form = KeyForm(("k", "d"), (pa.string(), pa.decimal128(9, 2)), "hash64", seed=3)
    assert KeyForm.of_schema(form.told_by(schema), "_code") == form
