"""Master data that changes while a join runs: every row meets the one version that the join was opened on."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.laws.conftest import SHAPES
from tests.laws.test_join_laws import STREAM, rows_of, run

from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import JOINS, make_join
from tidemill.join.protocol import SemiStreamJoin
from tidemill.master import MasterData, store

KEYS = st.integers(-3, 24)
CHANGES = st.lists(st.tuples(KEYS, st.sampled_from(["insert", "update", "delete"])), min_size=1, max_size=12)
FITTING = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(params=sorted(JOINS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def master_of(path: Any, keys: list[int]) -> MasterData:
    return MasterData.build(rows(keys, 0), key="id", path=path, page_bytes=4096)


def rows(keys: list[int], first: int) -> pa.Table:
    names = [f"row {first + n} " + "x" * 1300 for n in range(len(keys))]
    return pa.table({"id": pa.array(keys, pa.int64()), "name": names, "n": range(first, first + len(keys))})


def stream(keys: list[int]) -> list[pa.RecordBatch]:
    columns = [range(len(keys)), keys, ["note"] * len(keys)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, STREAM, strict=True)]
    whole = pa.RecordBatch.from_arrays(arrays, schema=STREAM)
    return [whole.slice(at, 5) for at in range(0, len(keys), 5)]


def join_on(name: str, master: MasterData) -> SemiStreamJoin:
    budget = MemoryBudget(1_000_000)
    return make_join(name, master, STREAM, stream_key="key", how="left", budget=budget)


def expected(master: MasterData, keys: list[int]) -> Counter[tuple[Any, ...]]:
    return rows_of(list(run(join_on("reference", master), stream(keys))))


@FITTING
@given(
    shape=st.sampled_from(["unique", "duplicates across pages", "one key"]),
    keys=st.lists(KEYS, min_size=1, max_size=40),
    changes=st.lists(CHANGES, min_size=1, max_size=2),
    steps=st.integers(0, 6),
    tidies=st.booleans(),
)
def test_rows_meet_the_version_that_the_join_was_opened_on(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    shape: str,
    keys: list[int],
    changes: list[list[tuple[int, str]]],
    steps: int,
    tidies: bool,
):
    monkeypatch.setattr(store, "is_worth_it", lambda _: False)
    pinned = newest = master_of(tmp_path_factory.mktemp("m"), SHAPES[shape])
    before = expected(pinned, keys)
    reports, running = [], run(join_on(name, pinned), stream(keys))
    for _ in range(steps):
        reports += [report for report in [next(running, None)] if report is not None]
    for number, batch in enumerate(changes):
        given_rows = rows([key for key, _ in batch], 1000 * (number + 1))
        newest = newest.apply(given_rows.append_column("_op", pa.array([word for _, word in batch])))
    if tidies:
        newest = newest.compact()
        newest.expire(keep_last=1, older_than=timedelta(0))
    after = expected(newest, keys)
    assert rows_of([*reports, *running]) == before
    assert rows_of(list(run(join_on(name, newest), stream(keys)))) == after
