"""Digits in halves of bytes: the same strings, or the frame alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import StoreError
from tidemill.core.files import read_sealed, write_sealed
from tidemill.master import MasterData
from tidemill.master.frame_survey import FrameSurvey
from tidemill.master.framing import Framed
from tidemill.master.layout import FORMAT_VERSION, MANIFEST_FILE, READABLE_FORMATS, version_folder
from tidemill.master.packing import Digits, Packing
from tidemill.master.rows import RowLayout
from tidemill.master.short_numbers import DoesNotFitError


def layout_of(how: Digits | Framed, kind: pa.DataType) -> RowLayout:
    schema = pa.schema([("id", pa.int64()), ("x", kind)])
    return RowLayout.of(schema, first="id", packing=Packing({"x": how}))


@given(data=st.data())
def test_digits_come_back_as_they_were(data: st.DataObject) -> None:
    begins, ends = data.draw(st.binary(max_size=70)), data.draw(st.binary(max_size=70))
    size = data.draw(st.integers(1, 100))
    middle = st.text("0123456789", min_size=size, max_size=size).map(str.encode)
    middles = data.draw(st.lists(st.none() | middle, min_size=1, max_size=200))
    values = [None if inside is None else begins + inside + ends for inside in middles]
    batch = pa.record_batch(
        {"id": pa.array(range(len(values)), pa.int64()), "x": pa.array(values, pa.binary())}
    )
    layout = layout_of(Digits(Framed(size, begins, ends)), pa.binary())
    assert layout.slots[1].width == (size + 1) // 2
    rows, at = layout.encode(batch)
    wanted = np.array(data.draw(st.lists(st.integers(-1, len(values) - 1), max_size=300)), dtype=np.int64)
    # Copied to the very end of its memory: nothing behind the rows is there to be read.
    decoded = layout.decode(rows.copy(), np.where(wanted < 0, -1, at[wanted]))
    decoded.validate(full=True)
    assert decoded.column("x").to_pylist() == [None if n < 0 else values[n] for n in wanted.tolist()]


@given(damage=st.binary(min_size=8, max_size=8))
def test_a_damaged_row_gives_ascii_of_the_same_length(damage: bytes) -> None:
    """Whoever shares rows with another process may meet a torn one, and finds out only after it was read."""
    layout = layout_of(Digits(Framed(15, "é-".encode(), b" x")), pa.string())
    batch = pa.record_batch({"id": [1, 2], "x": ["é-123456789012345 x", "é-000000000000000 x"]})
    rows, at = layout.encode(batch)
    slot = layout.slots[1]
    place = int(at[0]) + slot.offset
    rows[place : place + slot.width] = np.frombuffer(damage, np.uint8)
    decoded = layout.decode(rows, at[:-1])
    decoded.validate(full=True)
    torn, whole = (str(value) for value in decoded.column("x").to_pylist())
    assert (torn[:2], torn[-2:], len(torn)) == ("é-", " x", 19)
    assert torn[2:].isascii()
    assert whole == "é-000000000000000 x"


@pytest.mark.parametrize(
    ("values", "how"),
    [
        (["SKU-001", "SKU-002"], Digits(Framed(3, b"SKU-", b""))),
        (["1", "2"], Framed(1, b"", b"")),
        (["12:30:59", "07:00:00"], Digits(Framed(8, b"", b""))),
        (["2024-01-31", "2025-02-01"], Framed(10, b"", b"")),
        (["n1x", "n2x", "n2y"], Framed(2, b"n", b"")),
        (["n1x5", "n2x5", "n205"], Framed(3, b"n", b"")),
        (["n1x", "n22"], Framed(2, b"n", b"")),
        (["n11", "n2x"], Framed(2, b"n", b"")),
        (["a/1", "a/2"], Framed(1, b"a/", b"")),
        (["/1", "01"], Framed(2, b"", b"")),
        (["@1", "01"], Framed(2, b"", b"")),
        (["é12", "é34"], Digits(Framed(2, "é".encode(), b""))),
    ],
)
@pytest.mark.parametrize("at_a_time", [1, 9])
def test_what_has_digits_alone_inside(values: list[str], how: Digits | Framed, at_a_time: int) -> None:
    survey = FrameSurvey()
    column = pa.array(values, pa.string())
    for first in range(0, len(values), at_a_time):
        survey.add(column.slice(first, at_a_time))
    found = survey.packed()
    assert found == how
    assert found is not None
    found.pack(column)


def test_other_characters_are_refused() -> None:
    digits = Digits(Framed(3, b"n", b""))
    for odd in ("n12a", "n-12", "m123", "n1234"):
        with pytest.raises(DoesNotFitError):
            digits.pack(pa.array(["n123", odd]))


ROWS = [f"no. {n:010d}" for n in range(2000)]


@pytest.fixture
def master(tmp_path: Path) -> MasterData:
    rows = pa.table({"id": range(2000), "number": ROWS})
    return MasterData.build(rows, key="id", path=tmp_path / "store", page_bytes=4096, pack=True)


def numbers(master: MasterData) -> list[Any]:
    return [number for batch in master.scan() for number in batch.column("number").to_pylist()]


def changed(master: MasterData, number: str | None) -> MasterData:
    return master.apply(pa.table({"id": [5], "number": pa.array([number], pa.string()), "_op": ["update"]}))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        ("no. 9999999999", "digits"),
        (None, "digits"),
        ("no. 99999x9999", "framed"),
        ("no. -999999999", "framed"),
        ("number 1", None),
    ],
)
def test_a_change_keeps_digits_or_the_frame_or_neither(
    master: MasterData, number: str | None, kind: str | None
) -> None:
    after = changed(master, number)
    assert after.packing.form.get("number", "None").split()[0] == str(kind)
    expected = [*ROWS[:5], number, *ROWS[6:]]
    assert numbers(after) == numbers(MasterData.open(master.path)) == expected
    assert numbers(master) == ROWS


def test_a_store_of_format_5_is_read_and_changed_in_its_own_form(master: MasterData, tmp_path: Path) -> None:
    digits = master.packing.columns["number"]
    assert isinstance(digits, Digits)
    old = master.repacked(Packing({"number": digits.frame}))
    file = version_folder(old.path, old.version) / MANIFEST_FILE
    write_sealed(file, {**read_sealed(file), "format_version": 5})
    again = MasterData.open(master.path)
    assert again.packing.form == {"number": digits.frame.form}
    assert numbers(again) == ROWS
    assert changed(again, "no. 7777777777").packing.form == {"number": digits.frame.form}


def test_readers_of_format_5_refuse_what_they_would_misread(
    master: MasterData, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert master.manifest.format_version == FORMAT_VERSION == READABLE_FORMATS[-1]
    monkeypatch.setattr("tidemill.master.layout.READABLE_FORMATS", (3, 4, 5))
    with pytest.raises(StoreError) as refused:
        MasterData.open(master.path)
    assert refused.value.code == "format_version"
