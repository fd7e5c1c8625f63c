"""Floats as whole numbers: the same bits, or not at all."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemill.master import MasterData
from tidemill.master.packing import Packing, Scaled
from tidemill.master.rows import RowLayout
from tidemill.master.scaling import MOST_PLACES, ScaleSurvey
from tidemill.master.short_numbers import DoesNotFitError

Floats = Sequence[float | None]


def bits(values: Floats) -> list[bytes | None]:
    return [None if value is None else struct.pack("<d", value) for value in values]


def surveyed(values: Floats, pieces: int = 1) -> Scaled | None:
    survey = ScaleSurvey()
    column = pa.array(values, pa.float64())
    for first in range(0, len(values), pieces):
        survey.add(column.slice(first, pieces))
    return survey.scaled()


def through_rows(values: Floats, how: Scaled) -> Floats:
    batch = pa.record_batch(
        {"id": pa.array(range(len(values)), pa.int64()), "x": pa.array(values, pa.float64())}
    )
    layout = RowLayout.of(batch.schema, first="id", packing=Packing({"x": how}))
    rows, at = layout.encode(batch)
    decoded = layout.decode(rows, at[:-1])
    decoded.validate(full=True)
    found: Floats = decoded.column("x").to_pylist()
    return found


@st.composite
def decimals(draw: st.DrawFn) -> Floats:
    """Texts of decimal numbers as floats, as a file of prices has them."""
    most = 10 ** draw(st.integers(0, 10))
    number = st.integers(-most, most)
    pairs = st.lists(st.none() | st.tuples(number, st.integers(0, 4)), min_size=1, max_size=40)
    return [
        None if pair is None or (pair[0] == 0) else float(f"{pair[0]}e-{pair[1]}") for pair in draw(pairs)
    ]


@given(values=decimals(), pieces=st.integers(1, 50))
def test_decimal_numbers_come_back_bit_for_bit(values: Floats, pieces: int) -> None:
    how = surveyed(values, pieces)
    assert how is not None
    assert how.places <= 4
    assert bits(through_rows(values, how)) == bits(values)
    assert how == surveyed(values, len(values)), "whatever batches they come in"


@given(values=st.lists(st.none() | st.floats(), min_size=1, max_size=20), pieces=st.integers(1, 20))
@example(values=[-0.0], pieces=1)
@example(values=[float("nan"), 1.0], pieces=1)
@example(values=[float("-inf")], pieces=1)
@example(values=[0.1, 2.0**44], pieces=1)
@example(values=[0.1 + 0.2], pieces=1)
@example(values=[1e300, 5e-324], pieces=2)
def test_any_floats_come_back_bit_for_bit_or_are_refused(values: Floats, pieces: int) -> None:
    how = surveyed(values, pieces)
    if how is not None:
        assert bits(through_rows(values, how)) == bits(values)
    for width, places in ((1, 0), (3, 2), (6, MOST_PLACES)):
        chosen, column = Scaled(width, places), pa.array(values, pa.float64())
        if chosen.holding(column) is None:
            with pytest.raises(DoesNotFitError):
                chosen.pack(column)
        else:
            assert bits(through_rows(values, chosen)) == bits(values)


@pytest.mark.parametrize(
    ("values", "how"),
    [
        ([1.0, 100.0], Scaled(1, 0)),
        ([0.5, -99.0], Scaled(2, 1)),
        ([99.99], Scaled(2, 2)),
        ([262.2], Scaled(2, 1)),
        ([262.2, 300.01], Scaled(3, 2)),
        ([0.000001], Scaled(1, 6)),
        ([0.0000001], None),
        ([-0.0], None),
        ([float("nan")], None),
        ([float("inf")], None),
        ([1 / 3], None),
        ([2.0**46], Scaled(6, 0)),
        ([2.0**47], None),
        ([2.0**44, 0.1], None),
        ([None], Scaled(1, 0)),
    ],
)
def test_the_fewest_places_and_bytes_with_room_for_a_quarter_more(values: Floats, how: Scaled | None) -> None:
    assert surveyed(values) == how
    assert surveyed(values[::-1]) == how


def test_values_behind_the_first_of_a_large_batch_count_too() -> None:
    assert surveyed([1.0] * 5000 + [0.25], 6000) == Scaled(1, 2)
    assert surveyed([1.0] * 5000 + [1 / 3], 6000) is None


@pytest.fixture
def master(tmp_path: Path) -> MasterData:
    notes = pa.nulls(2000, pa.int8())  # so that rows have bits, and a price may become NULL
    rows = pa.table({"id": range(2000), "price": np.arange(2000) / 100, "note": notes})
    return MasterData.build(rows, key="id", path=tmp_path / "store", page_bytes=4096, pack=True)


def prices(master: MasterData) -> Floats:
    return [price for batch in master.scan() for price in batch.column("price").to_pylist()]


def changed(master: MasterData, price: float | None) -> MasterData:
    row = {"id": [5], "price": pa.array([price], pa.float64()), "note": pa.nulls(1, pa.int8())}
    return master.apply(pa.table({**row, "_op": ["update"]}))


@pytest.mark.parametrize("price", [24.99, None, -3.5, 327.67])
def test_a_change_that_fits_leaves_rows_as_they_are(master: MasterData, price: float | None) -> None:
    after = changed(master, price)
    assert after.packing.form == master.packing.form == {"id": "narrow 4", "price": "scaled 2 of 2"}
    assert after.version == master.version + 1
    assert prices(MasterData.open(master.path))[4:7] == [0.04, price, 0.06]


@pytest.mark.parametrize("price", [float("nan"), float("-inf"), -0.0, 0.001, 327.68])
def test_a_change_that_does_not_fit_takes_the_column_back_to_eight_bytes(
    master: MasterData, price: float
) -> None:
    after = changed(master, price)
    assert after.packing.form == {"id": "narrow 4"}
    assert bits(prices(after)) == bits([n / 100 if n != 5 else price for n in range(2000)])
    assert prices(master)[5] == 0.05
