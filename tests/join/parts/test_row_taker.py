"""Rows taken by number are those that Arrow takes."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tidemill.join.parts.row_taker import RowTaker

BATCH = pa.RecordBatch.from_pydict(
    {
        "long": pa.array(range(6), pa.int64()),
        "int": pa.array([5, 4, 3, 2, 1, 0], pa.int32()),
        "byte": pa.array([1, 2, 3, 4, 5, 6], pa.int8()),
        "wide": pa.array([Decimal(n) for n in range(6)], pa.decimal128(20)),
        "day": pa.array([dt.date(2026, 1, n) for n in range(1, 7)], pa.date32()),
        "flag": pa.array([True, False, True, True, False, None]),
        "name": pa.array(["a", None, "ccc", "", "e", "f"]),
        "gaps": pa.array([1.5, None, 2.5, None, 3.5, 4.5]),
        "place": pa.array([{"x": n} for n in range(6)]),
        "code": pa.array(["u", "v", "u", "v", "w", "u"]).dictionary_encode(),
    }
)


@pytest.mark.parametrize("rows", [[], [5], [0, 1, 2, 3, 4, 5], [3, 3, 0, 5, 1]])
@pytest.mark.parametrize("first", [0, 2])
def test_takes_what_arrow_takes(rows: list[int], first: int) -> None:
    batch = pa.concat_batches([BATCH, BATCH]).slice(first, 6)
    taken = RowTaker(batch.schema).take(batch, np.array(rows, dtype=np.int64))
    taken.validate(full=True)
    assert taken.equals(batch.take(pa.array(rows, pa.int64())))


def test_takes_rows_without_columns_of_fixed_width() -> None:
    batch = BATCH.select(["name"])
    assert RowTaker(batch.schema).take(batch, np.array([2, 1])).to_pylist() == [
        {"name": "ccc"},
        {"name": None},
    ]
