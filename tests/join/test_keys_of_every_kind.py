"""Keys of every kind through every join: equal keys meet, and keys that only share a code never do."""

import datetime as dt
import uuid
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import JOINS, make_join
from tidemill.join.drive import drive
from tidemill.join.output import How
from tidemill.master import MasterData
from tidemill.master.keys import KeyForm

KEYS = 120
"""In the store; as many that are not."""
LONG = 5
"""The key with so many rows that they fill several pages."""
ROWS_OF_LONG = 200

# Types of the key's columns, and the values that make key number n.
KINDS: dict[str, tuple[list[pa.DataType], Callable[[int], tuple[Any, ...]]]] = {
    "integer": ([pa.int32()], lambda n: (n * 1_000_003 % 2**31 - 2**30,)),
    "string": ([pa.string()], lambda n: (f"key {n}" + "é" * (n % 7),)),
    "decimal": ([pa.decimal128(20, 3)], lambda n: (Decimal(n * 12_345) / 1000,)),
    "date": ([pa.date32()], lambda n: (dt.date(1960, 1, 1) + dt.timedelta(days=37 * n),)),
    "timestamp": ([pa.timestamp("us", "UTC")], lambda n: (dt.datetime(1969, 12, 1 + n % 28, n % 24, n // 24, tzinfo=dt.UTC),)),
    "uuid": ([pa.binary(16)], lambda n: (uuid.uuid5(uuid.NAMESPACE_OID, str(n)).bytes,)),
    "composite": ([pa.string(), pa.int64(), pa.date32()], lambda n: (f"shop {n % 9}", n // 9, dt.date(2024, 1, 1 + n % 3))),
}  # fmt: skip


def columns_of(kind: str, numbers: list[int | None]) -> dict[str, "pa.Array[Any]"]:
    """The key columns of numbered keys; NULL in the last column where there is none."""
    types, value = KINDS[kind]
    rows = [(*value(0)[:-1], None) if n is None else value(n) for n in numbers]
    return {f"k{at}": pa.array([row[at] for row in rows], types[at]) for at in range(len(types))}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MasterData]:
    """Each third key twice, one of them over several pages; `n` counts rows."""
    numbers = [n for n in range(KEYS) for _ in range(ROWS_OF_LONG if n == LONG else 2 if n % 3 == 0 else 1)]
    facts = {"n": range(len(numbers)), "of": numbers, "name": [f"row of {n}" + "." * 90 for n in numbers]}
    folder = tmp_path_factory.mktemp("stores")
    return {
        kind: MasterData.build(
            pa.table({**columns_of(kind, numbers), **facts}),
            key=list(columns_of(kind, [0])),
            path=folder / kind,
            page_bytes=4096,
        )
        for kind in KINDS
    }


def stream(kind: str) -> tuple[list[int | None], list[pa.RecordBatch]]:
    """Key numbers, and rows with those keys. Keys that do not exist come first, so that a join may learn of them."""
    chance = np.random.default_rng(8)
    few = chance.choice(12, 150).tolist()
    numbers = [
        *(KEYS + n for n in range(KEYS)),
        None,
        *few,
        *chance.choice(2 * KEYS, 300).tolist(),
        None,
        *few,
    ]
    columns = columns_of(kind, numbers)
    whole = pa.RecordBatch.from_pydict({"row": pa.array(range(len(numbers))), **columns})
    return numbers, [whole.slice(at, 90) for at in range(0, len(numbers), 90)]


def expected(numbers: list[int | None], how: How) -> Counter[tuple[int, int | None]]:
    """Stream row and key number of what leaves, by arithmetic alone."""
    rows: Counter[tuple[int, int | None]] = Counter()
    for row, n in enumerate(numbers):
        matches = 0 if n is None or n >= KEYS else ROWS_OF_LONG if n == LONG else 2 if n % 3 == 0 else 1
        leaves = {"inner": matches, "left": max(1, matches), "semi": min(1, matches), "anti": not matches}[
            how
        ]
        rows[row, n if matches and how in ("inner", "left") else None] += int(leaves)
    return +rows


def found(
    name: str, kind: str, how: How, store: MasterData, *, drains: bool = False, known_first: bool = False
) -> Counter[tuple[int, int | None]]:
    """As `expected`, from the join; each pair of rows must be there once."""
    _, batches = stream(kind)
    key = [column for column in batches[0].schema.names if column != "row"]
    join = make_join(name, store, batches[0].schema, stream_key=key, how=how, budget=MemoryBudget(250_000))
    rows: Counter[tuple[int, int | None]] = Counter()
    pairs: set[tuple[int, int]] = set()
    for report in drive(join, batches[::-1] if known_first else batches, drain_each_batch=drains):
        for output in report.outputs:
            own = output.column("row").to_pylist()
            if how in ("semi", "anti"):
                rows.update((row, None) for row in own)
                continue
            rows.update(zip(own, output.column("of").to_pylist(), strict=True))
            for pair in zip(own, output.column("n").to_pylist(), strict=True):
                assert pair not in pairs or pair[1] is None
                pairs.add(pair)
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(JOINS))
def test_equal_keys_meet(name: str, kind: str, stores: dict[str, MasterData]):
    assert stores[kind].pages > 5
    for how in get_args(How):
        assert found(name, kind, how, stores[kind]) == expected(stream(kind)[0], how), how


def collide(monkeypatch: pytest.MonkeyPatch, kind: str, store: MasterData) -> None:
    """Give each key that is not in the store the code of one that is."""
    real: Any = KeyForm.codes
    stored, absent = (
        real(store.key_form, list(columns_of(kind, list(numbers)).values()))[0]
        for numbers in (range(KEYS), range(KEYS, 2 * KEYS))
    )
    order = np.argsort(absent)

    def codes(form: KeyForm, columns: list["pa.Array[Any]"]) -> tuple[Any, Any]:
        own, present = real(form, columns)
        at = np.minimum(np.searchsorted(absent, own, sorter=order), KEYS - 1)
        return np.where(absent[order[at]] == own, stored[order[at]], own), present

    monkeypatch.setattr(KeyForm, "codes", codes)


HASHED = [kind for kind in KINDS if kind != "integer"]


@pytest.mark.parametrize("kind", HASHED)
@pytest.mark.parametrize("name", sorted(JOINS))
def test_keys_that_share_a_code_do_not_meet(
    name: str, kind: str, stores: dict[str, MasterData], monkeypatch: pytest.MonkeyPatch
):
    """Neither in pages nor in what a join keeps of the keys that came before."""
    collide(monkeypatch, kind, stores[kind])
    whole = expected(stream(kind)[0], "inner")
    for known_first in (False, True):
        leaves = found(name, kind, "inner", stores[kind], drains=True, known_first=known_first)
        assert not leaves - whole


@pytest.mark.parametrize("kind", HASHED)
@pytest.mark.parametrize("name", sorted(JOINS))
def test_no_row_is_lost_to_a_key_that_shares_its_code(
    name: str, kind: str, stores: dict[str, MasterData], monkeypatch: pytest.MonkeyPatch
):
    collide(monkeypatch, kind, stores[kind])
    # Batch by batch, so that what was learned from the first ones is used for the others.
    for how in get_args(How):
        assert found(name, kind, how, stores[kind], drains=True) == expected(stream(kind)[0], how), how
