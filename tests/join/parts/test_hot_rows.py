"""A generation of hot rows: what it finds, and what its file survives."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import StoreError
from tidemill.join.parts.hot_file import verify_hot_file
from tidemill.join.parts.hot_rows import ENTRY_BYTES, HotRows

INT64S = st.integers(-(2**63), 2**63 - 1)


def generation(keys: list[int], rows_per_key: list[int] | None = None) -> HotRows:
    counts = np.array(rows_per_key or [1] * len(keys), dtype=np.int64)
    names = [f"{key}/{n}" for key, count in zip(keys, counts.tolist(), strict=True) for n in range(count)]
    payload = pa.RecordBatch.from_arrays(
        [pa.array(names, pa.string()), pa.array(range(len(names)), pa.int32())], ["name", "n"]
    )
    frequencies = np.arange(len(keys), dtype=np.uint32)
    return HotRows.build(np.array(keys, dtype=np.int64), counts, frequencies, payload, "000001-x")


@given(st.lists(INT64S, unique=True, max_size=200), st.lists(INT64S, max_size=50))
def test_probe_finds_what_is_there_and_nothing_else(keys: list[int], others: list[int]):
    hot = generation(keys)
    assert hot.probe(np.array(keys, dtype=np.int64)).tolist() == list(range(len(keys)))
    entry_of = {key: entry for entry, key in enumerate(keys)}
    expected = [entry_of.get(key, -1) for key in others]
    assert hot.probe(np.array(others, dtype=np.int64)).tolist() == expected
    assert hot.keys().tolist() == keys


def test_rows_of_a_key_lie_side_by_side():
    hot = generation([10, 20, 30], [2, 1, 3])
    entry = int(hot.probe(np.array([30]))[0])
    rows = hot.payload.slice(hot.row_start[entry], hot.row_start[entry + 1] - hot.row_start[entry])
    assert rows.column("name").to_pylist() == ["30/0", "30/1", "30/2"]


def test_a_mapped_generation_equals_the_built_one_and_copies_nothing(tmp_path: Path):
    built = generation(list(range(0, 90_000, 3)))
    built.write(tmp_path / "hot")
    before = pa.total_allocated_bytes()
    mapped = HotRows.open(tmp_path / "hot")
    assert pa.total_allocated_bytes() - before < 10_000
    assert not mapped.slots.flags.owndata
    assert mapped.payload.equals(built.payload)
    assert (mapped.identity, mapped.bytes_held) == (built.identity, built.bytes_held)
    keys = np.arange(1000)
    assert mapped.probe(keys).tolist() == built.probe(keys).tolist()
    assert [file.name for file in tmp_path.iterdir()] == ["hot"]


def test_who_has_the_old_file_mapped_keeps_it_when_it_is_replaced(tmp_path: Path):
    generation([1, 2]).write(tmp_path / "hot")
    old = HotRows.open(tmp_path / "hot")
    generation([7, 8, 9]).write(tmp_path / "hot")
    assert old.keys().tolist() == [1, 2]
    assert old.payload.column("name").to_pylist() == ["1/0", "2/0"]
    assert HotRows.open(tmp_path / "hot").keys().tolist() == [7, 8, 9]


def test_an_empty_generation_finds_nothing(tmp_path: Path):
    hot = HotRows.empty(pa.schema([("name", pa.string())]), "x")
    hot.write(tmp_path / "hot")
    assert HotRows.open(tmp_path / "hot").probe(np.array([0, 1, -1])).tolist() == [-1, -1, -1]


def test_bytes_per_key_are_what_sizes_are_reckoned_with():
    hot = generation(list(range(10_000)))
    assert (hot.bytes_held - hot.payload_bytes) / hot.entries == pytest.approx(ENTRY_BYTES, abs=0.1)


@pytest.mark.parametrize("damage", ["cut", "header", "empty", "missing", "format"])
def test_a_damaged_file_is_refused_at_open(tmp_path: Path, damage: str):
    file = tmp_path / "hot"
    generation([1, 2, 3]).write(file)
    content = file.read_bytes()
    bad = {
        "cut": content[:-5000],
        "header": content.replace(b"000001-x", b"000002-x"),
        "empty": b"",
        "format": content.replace(b'"format_version": 1', b'"format_version": 2'),
    }
    file.unlink() if damage == "missing" else file.write_bytes(bad[damage])
    with pytest.raises(StoreError):
        HotRows.open(file)


def test_verify_finds_a_changed_bit_in_any_part(tmp_path: Path):
    file = tmp_path / "hot"
    generation(list(range(50))).write(file)
    verify_hot_file(file)
    good = file.read_bytes()
    for at in range(4096, len(good), 4096):
        bad = bytearray(good)
        bad[at] ^= 1
        file.write_bytes(bad)
        with pytest.raises(StoreError, match="fails its checksum"):
            verify_hot_file(file)
