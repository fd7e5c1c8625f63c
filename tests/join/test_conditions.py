"""Ranges and free conditions, against a plain double loop."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import BudgetError, SpecError
from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import JOINS, make_join
from tidemill.join.conditions import Between, Condition, Near, Where
from tidemill.join.drive import drive
from tidemill.join.output import How
from tidemill.master import MasterData

STREAM = pa.schema([("row", pa.int64()), ("value", pa.int64()), ("weight", pa.float64())])
LONGEST = 2**63 - 1
WHO_CAN = sorted(name for name, kind in JOINS.items() if getattr(kind, "takes_conditions", False))


def is_heavy(stream_rows: pa.RecordBatch, master_rows: pa.RecordBatch) -> np.ndarray:
    heavier = pc.greater(stream_rows.column("weight"), pc.cast(master_rows.column("n"), pa.float64()))
    return np.asarray(pc.fill_null(heavier, False).to_numpy(zero_copy_only=False))


CONDITIONS: dict[str, tuple[Condition, Any]] = {
    "between": (
        Between("value", "low", "high"),
        lambda s, m: None not in (s["value"], m["low"], m["high"]) and m["low"] <= s["value"] <= m["high"],
    ),
    "near": (
        Near("value", "low", 7),
        lambda s, m: None not in (s["value"], m["low"]) and abs(s["value"] - m["low"]) <= 7,
    ),
    "near float": (
        Near("weight", "high", 2.5),
        lambda s, m: None not in (s["weight"], m["high"]) and abs(s["weight"] - m["high"]) <= 2.5,
    ),
    "where": (Where(is_heavy, "heavy"), lambda s, m: s["weight"] is not None and s["weight"] > m["n"]),
}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    """Forty wide rows in many pages, with NULLs and the ends of the type among them."""
    low: list[int | None] = [None if n % 9 == 4 else n * 3 - 30 for n in range(40)]
    low[0], low[1] = -LONGEST - 1, LONGEST
    high = [None if n % 7 == 3 else n * 3 - 30 + n % 5 * 4 for n in range(40)]
    name = [f"name {n} " + "x" * 900 for n in range(40)]
    columns = {"id": range(40), "low": pa.array(low, pa.int64()), "high": high, "n": range(40), "name": name}
    return MasterData.build(pa.table(columns), key="id", path=tmp_path_factory.mktemp("m"), page_bytes=4096)


def expected(rows: list[dict[str, Any]], master: MasterData, says: Any, how: How) -> Counter[Any]:
    """(stream row, n of the master row) by a double loop."""
    stored = [row for page in range(master.pages) for row in master.read_page(page).to_pylist()]
    out: Counter[Any] = Counter()
    for row in rows:
        matches = [m["n"] for m in stored if says(row, m)]
        if how in ("inner", "left"):
            out.update((row["row"], n) for n in matches)
        if (how == "left" and not matches) or (how == "semi" and matches) or (how == "anti" and not matches):
            out[(row["row"], None)] += 1
    return out


values = st.none() | st.integers(-60, 120) | st.sampled_from([LONGEST, -LONGEST - 1])
weights = st.none() | st.floats(-40, 100) | st.just(float("nan"))


@pytest.mark.parametrize("name", WHO_CAN)
@settings(max_examples=40, deadline=None)
@given(
    pairs=st.lists(st.tuples(values, weights), max_size=40),
    chosen=st.sampled_from(sorted(CONDITIONS)),
    how=st.sampled_from(get_args(How)),
    memory_bytes=st.sampled_from([150_000, 2_000_000]),
    reborn_every=st.integers(1, 6),
)
def test_output_is_that_of_a_double_loop(
    name: str,
    master: MasterData,
    pairs: list[tuple[int | None, float | None]],
    chosen: str,
    how: How,
    memory_bytes: int,
    reborn_every: int,
):
    condition, says = CONDITIONS[chosen]
    rows = [{"row": n, "value": value, "weight": weight} for n, (value, weight) in enumerate(pairs)]
    budget = MemoryBudget(memory_bytes)
    join = make_join(name, master, STREAM, budget=budget, how=how, condition=condition)
    seen: Counter[Any] = Counter()
    for step, report in enumerate(drive(join, [pa.RecordBatch.from_pylist(rows, STREAM)])):
        seen.update((r["row"], r.get("n")) for out in report.outputs for r in out.to_pylist())
        assert all(held <= budget.holdings()[part] for part, held in report.held_bytes.items())
        if step % reborn_every == 0:
            join.restore(join.snapshot())
    assert seen == expected(rows, master, says, how)


def test_ordered_output_with_a_condition(master: MasterData):
    rows = [{"row": n, "value": (n * 37) % 90 - 30, "weight": 0.0} for n in range(200)]
    condition, says = CONDITIONS["between"]
    budget = MemoryBudget(400_000)
    join = make_join("mesh", master, STREAM, budget=budget, condition=condition, ordered=True)
    reports = drive(join, [pa.RecordBatch.from_pylist(rows, STREAM)])
    seen = [(r["row"], r["n"]) for report in reports for out in report.outputs for r in out.to_pylist()]
    assert [row for row, _ in seen] == sorted(row for row, _ in seen)
    assert Counter(seen) == expected(rows, master, says, "inner")


def test_a_price_is_found_by_the_time_of_the_sale(tmp_path: Any):
    start = datetime(2024, 1, 1, tzinfo=UTC)
    days = [start + timedelta(days=n) for n in range(0, 100, 10)]
    ends = [day + timedelta(days=9, hours=23) for day in days]
    prices = MasterData.build(
        pa.table({"id": range(10), "begins": days, "ends": ends, "price": range(10)}), key="id", path=tmp_path
    )
    schema = pa.schema([("sold_at", pa.timestamp("us", "UTC"))])
    budget = MemoryBudget(10**6)
    condition = Between("sold_at", "begins", "ends")
    join = make_join("mesh", prices, schema, budget=budget, condition=condition, columns=["price"])
    sales = pa.RecordBatch.from_pylist(
        [{"sold_at": start + timedelta(days=n)} for n in (0, 25, 99, 300)], schema
    )
    found = [
        row["price"] for report in drive(join, [sales]) for out in report.outputs for row in out.to_pylist()
    ]
    assert sorted(found) == [0, 2, 9]


def test_joins_by_key_refuse_and_list_who_can(master: MasterData):
    for name in sorted(set(JOINS) - set(WHO_CAN)):
        with pytest.raises(SpecError) as refusal:
            make_join(name, master, STREAM, budget=MemoryBudget(10**7), condition=Near("value", "low", 1))
        assert refusal.value.valid == ["adaptive_mesh", "mesh", "reduced_mesh"]


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        (Between("valu", "low", "high"), "unknown_stream_column"),
        (Between("value", "low", "hi"), "unknown_master_column"),
        (Between("value", "low", "name"), "condition_type"),
        (Near("value", "low", -1), "condition_within"),
        (None, "no_stream_key"),
    ],
)
def test_what_cannot_be_is_refused_with_its_code(master: MasterData, condition: Any, code: str):
    with pytest.raises(SpecError) as refusal:
        make_join("mesh", master, STREAM, budget=MemoryBudget(10**6), condition=condition)
    assert refusal.value.code == code


def test_a_predicate_that_gives_no_booleans_and_a_budget_too_small_are_refused(master: MasterData):
    wrong = Where(lambda stream_rows, _: np.zeros(stream_rows.num_rows + 1, dtype=np.bool_), "wrong")
    join = make_join("mesh", master, STREAM, budget=MemoryBudget(10**6), condition=wrong)
    with pytest.raises(SpecError, match="'wrong' gave bool"):
        list(drive(join, [pa.RecordBatch.from_pylist([{"row": 1}], STREAM)]))
    with pytest.raises(BudgetError) as refusal:
        make_join("mesh", master, STREAM, budget=MemoryBudget(5000), condition=wrong)
    make_join("mesh", master, STREAM, budget=MemoryBudget(refusal.value.least_bytes), condition=wrong)
