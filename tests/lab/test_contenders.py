"""Every contender gives the rows of DuckDB's join, and the judge sees every kind of wrong row."""

from itertools import chain

import pyarrow as pa
import pytest

from tidemill.core.errors import StoreError
from tidemill.lab.bench_joins import all_contenders
from tidemill.lab.join_cell import CellSpec, catch, open_contender, run_for
from tidemill.lab.join_data import JoinData, require_space
from tidemill.lab.streams import endless, first_rows, stream_batches
from tidemill.lab.verify import Judge

STREAM = list(stream_batches(20_000, 1.0, 4000, seed=1))


def spec_of(data: JoinData, contender: str, **changes: object) -> CellSpec:
    fixed = {"zipf": 1.0, "memory_share": 0.7, "seconds": 0.2, "stream_rows": 2000, "seed": 1}
    return CellSpec(contender, master_rows=data.rows, folder=str(data.folder), **(fixed | changes))


@pytest.mark.parametrize("name", all_contenders())
def test_rows_equal_duckdbs_join(name: str, data: JoinData) -> None:
    outputs = chain.from_iterable(open_contender(spec_of(data, name)).join(STREAM))
    assert Judge(data).same_rows(outputs, STREAM)


def joined(data: JoinData) -> pa.Table:
    work = open_contender(spec_of(data, "peer-batched-inl")).join(STREAM)
    return pa.Table.from_batches(chain.from_iterable(work)).combine_chunks()


def swapped(table: pa.Table) -> pa.Table:
    """Two rows with each other's price."""
    prices = table.column("price").to_pylist()
    prices[0], prices[1] = prices[1], prices[0]
    return table.set_column(table.schema.get_field_index("price"), "price", pa.array(prices))


@pytest.mark.parametrize(
    ("fault", "rows"),
    [
        ("lost", lambda table: table.slice(1)),
        ("doubled", lambda table: pa.concat_tables([table, table.slice(0, 1)])),
        ("one instead of another", lambda table: pa.concat_tables([table.slice(1), table.slice(5, 1)])),
        ("swapped", swapped),
    ],
)
def test_the_judge_sees_a_row_that_is(fault: str, rows, data: JoinData) -> None:  # type: ignore[no-untyped-def]
    judge, table = Judge(data), joined(data)
    assert judge.same_rows(table.to_batches(), STREAM)
    assert not judge.same_rows(rows(table).to_batches(), STREAM), fault


def test_rows_caught_in_the_middle_are_held_against_their_own_stream_rows(data: JoinData) -> None:
    table = joined(data)
    some = pa.concat_tables([table.slice(700, 50), table.slice(10, 30)])
    assert Judge(data).right_matches(some.to_batches(), STREAM)
    assert not Judge(data).right_matches(swapped(some).to_batches(), STREAM)


def test_an_endless_stream_is_measured_without_draining_it(data: JoinData) -> None:
    spec = spec_of(data, "mesh", stream_rows=None)
    work = open_contender(spec).join(endless(STREAM))
    rows, seconds = run_for(work, spec)
    assert rows > 0
    assert spec.seconds <= seconds < 20 * spec.seconds
    assert sum(batch.num_rows for batch in catch(work, 100)) >= 100


def test_rows_end_a_run_before_its_seconds_do(data: JoinData) -> None:
    spec = spec_of(data, "peer-sqlite-inl", seconds=60.0)
    rows, seconds = run_for(open_contender(spec).join(endless(STREAM)), spec)
    assert 2000 <= rows <= 4000
    assert seconds < 30


def test_the_start_of_a_stream_has_the_rows_asked_for() -> None:
    assert sum(batch.num_rows for batch in first_rows(STREAM, 1234)) == 1234


def test_a_full_disk_is_refused_before_anything_is_written(data: JoinData) -> None:
    with pytest.raises(StoreError, match="fewer --rows"):
        require_space(data.folder, 10**18)


def test_forms_that_are_there_are_not_built_again(data: JoinData) -> None:
    assert data.missing(["parquet", "store"]) == []
    assert JoinData(data.folder, 77).missing(["parquet", "store"]) == ["parquet", "store"]
