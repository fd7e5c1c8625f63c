"""Every join on a table in each database: the same rows as on a store of ours."""

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.master.servers import ENGINES, Database, database

from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import JOINS, make_join
from tidemill.join.conditions import Between
from tidemill.join.drive import drive
from tidemill.join.protocol import StepReport
from tidemill.master import MasterData
from tidemill.master.sql import MasterTable

KEYS = 150
KEY_COLUMNS = {"integer": ["id"], "text": ["name"], "composite": ["region", "place"]}
COLUMNS = "id BIGINT, name VARCHAR, region VARCHAR, place INTEGER, price DECIMAL(12, 2), note VARCHAR"


def rows() -> pa.Table:
    """Every third key twice, one of them thirty times: more than a page; each fifth note NULL."""
    ids = np.array(sorted([*range(0, 2 * KEYS, 2), *range(0, 2 * KEYS, 6), *[40] * 28]))
    number = np.arange(len(ids))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": [f"näme {n % 97}-{n}" for n in ids],
            "region": [f"r{n % 7}" for n in ids],
            "place": pa.array(ids // 7, pa.int32()),
            "price": pa.array([Decimal(int(n)) / 100 for n in number], pa.decimal128(12, 2)),
            "note": [None if n % 5 == 0 else f"note {n}" for n in number],
        }
    )


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Database]]:
    opened: dict[str, Any] = {}
    contexts = []
    for engine in ENGINES:
        context = database(engine, tmp_path_factory.mktemp(engine))
        try:
            opened[engine] = context.__enter__()
        except pytest.skip.Exception as why:
            opened[engine] = why
            continue
        contexts.append(context)
        for kind, key in KEY_COLUMNS.items():
            opened[engine].create(f"by_{kind}", COLUMNS, rows(), index=", ".join(key))
    yield opened
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MasterData]:
    folder = tmp_path_factory.mktemp("stores")
    return {
        kind: MasterData.build(rows(), key=key, path=Path(folder) / kind, page_bytes=4096)
        for kind, key in KEY_COLUMNS.items()
    }


@pytest.fixture(scope="module")
def expected(stores: dict[str, MasterData]) -> dict[tuple[str, str], Counter[tuple[Any, ...]]]:
    """What the nested loop on a store gives."""
    found = {
        (kind, how): joined("reference", stores[kind], kind, how)
        for kind in stores
        for how in ("left", "semi")
    }
    assert all(sum(rows.values()) > 200 for rows in found.values())
    return found


@pytest.fixture
def tables(
    request: pytest.FixtureRequest, databases: dict[str, Database]
) -> Iterator[dict[str, MasterTable]]:
    """A handle for each kind of key, in one engine."""
    found = databases[request.param]
    if not isinstance(found, Database):
        raise found
    opened = {
        kind: MasterTable.open(found.address, table=f"by_{kind}", key=key, page_bytes=700)
        for kind, key in KEY_COLUMNS.items()
    }
    yield opened
    for table in opened.values():
        table.close()


def stream(kind: str) -> list[pa.RecordBatch]:
    """Keys of which half exist, some NULL."""
    ids = np.random.default_rng(8).integers(-20, 2 * KEYS + 20, 500)
    columns: dict[str, pa.Array[Any]] = {"row": pa.array(range(len(ids)), pa.int64())}
    if kind == "integer":
        columns["k"] = pa.array([None if n % 50 == 7 else n for n in ids.tolist()], pa.int64())
    elif kind == "text":
        columns["k"] = pa.array([f"näme {n % 97}-{n}" for n in ids])
    else:
        columns["k"] = pa.array([f"r{n % 7}" for n in ids])
        columns["l"] = pa.array(ids // 7, pa.int64())
    batch = pa.RecordBatch.from_pydict(columns)
    return [batch.slice(at, 170) for at in range(0, batch.num_rows, 170)]


def joined(name: str, master: Any, kind: str, how: str, **options: Any) -> Counter[tuple[Any, ...]]:
    batches = stream(kind)
    on = {"stream_key": ["k", "l"] if kind == "composite" else "k"} if "condition" not in options else {}
    budget = MemoryBudget(400_000)
    join = make_join(name, master, batches[0].schema, budget=budget, how=how, **on, **options)  # type: ignore[arg-type]
    found: Counter[tuple[Any, ...]] = Counter()
    for report in drive(join, batches):
        reserved = budget.holdings()
        assert all(held <= reserved[part] for part, held in report.held_bytes.items()), (name, report)
        for output in report.outputs:
            found.update(zip(*(column.to_pylist() for column in output.columns), strict=True))
    return found


@pytest.mark.parametrize("tables", ENGINES, indirect=True)
@pytest.mark.parametrize("name", sorted(JOINS))
def test_the_same_rows_as_a_store(
    name: str, tables: dict[str, MasterTable], expected: dict[tuple[str, str], Counter[tuple[Any, ...]]]
):
    for kind, table in tables.items():
        assert table.pages > 10
        for how in ("left", "semi"):
            assert joined(name, table, kind, how) == expected[kind, how], (kind, how)


@pytest.mark.parametrize("tables", ENGINES, indirect=True)
@pytest.mark.parametrize("name", ["mesh", "reduced_mesh", "adaptive_mesh"])
def test_ranges_of_keys_too(name: str, tables: dict[str, MasterTable], stores: dict[str, MasterData]):
    condition = Between("row", "place", "id")
    found = [
        joined(name, master, "integer", "inner", condition=condition, columns=["name"])
        for master in (tables["integer"], stores["integer"])
    ]
    assert found[0] == found[1]
    assert found[0]


@pytest.mark.parametrize("tables", ENGINES, indirect=True)
@pytest.mark.parametrize("name", ["cache", "mesh"])
def test_a_snapshot_of_a_join_goes_on_with_a_new_handle(
    name: str, tables: dict[str, MasterTable], databases: dict[str, Database]
):
    """Also in the middle of the rows that a page matched: `mesh` then counts on their order."""
    found = databases[tables["integer"]._engine.name.lower()]
    batch = pa.RecordBatch.from_pydict({"row": range(60), "k": [40] * 60})
    first = make_join(name, tables["integer"], batch.schema, stream_key="k", budget=MemoryBudget(60_000))  # type: ignore[arg-type]
    before = 0
    for part in (batch.slice(0, 20), batch.slice(20, 20)):
        first.offer(part)
        before += sum(output.num_rows for output in first.step().outputs)
    other = MasterTable.open(found.address, table="by_integer", key="id", page_bytes=700)
    second = make_join(name, other, batch.schema, stream_key="k", budget=MemoryBudget(60_000))  # type: ignore[arg-type]
    second.restore(first.snapshot())
    left = [Counter(_rows_of(join.drain())) for join in (first, second)]
    assert left[0] == left[1]
    assert left[0].total() == 40 * 29 - before > 0
    other.close()


def _rows_of(reports: Iterator[StepReport]) -> Iterator[tuple[Any, ...]]:
    for report in reports:
        for output in report.outputs:
            yield from zip(*(column.to_pylist() for column in output.columns), strict=True)
