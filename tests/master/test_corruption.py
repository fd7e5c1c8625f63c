"""Whatever happens to the files of a store: it is found before a row is used, and the file is named."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.core.errors import StoreError
from tidemill.master import MasterData
from tidemill.master.layout import BLOCKS_FILE, INDEX_FILE, KEYS_FILE, MANIFEST_FILE, PAGES_FILE

FILES = [PAGES_FILE, INDEX_FILE, KEYS_FILE, BLOCKS_FILE, MANIFEST_FILE]
WAYS = [(False, 1), (True, 3)]
QUIET = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def built(path: Path, salt: int) -> Path:
    rows = 3000
    table = pa.table(
        {"id": [f"k{n}" for n in range(rows)], "n": np.arange(rows) + salt, "p": ["x" * 50] * rows}
    )
    MasterData.build(table, key="id", path=path, page_bytes=8192, order_by="n")
    return path / "versions" / "000001"


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two stores of the same shape with other values."""
    folder = tmp_path_factory.mktemp("twins")
    return built(folder / "a", 0), built(folder / "b", 100_000)


def everything(folder: Path, way: tuple[bool, int]) -> list[dict[str, Any]]:
    master = MasterData.open(folder.parents[1], direct=way[0], reads_in_flight=way[1])
    keys = pa.array([f"k{n}" for n in range(3000)])
    assert master.lookup(keys)[1].num_rows == 3000
    return [row for page in master.scan() for row in page.to_pylist()]


def refused_or_unharmed(
    folder: Path, name: str, way: tuple[bool, int], damage: Callable[[bytes], bytes]
) -> StoreError | None:
    """The error after the damage; None when the store still gives every row as it was (padding was hit)."""
    file = folder / name
    good, expected = file.read_bytes(), everything(folder, way)
    file.write_bytes(damage(good))
    try:
        assert everything(folder, way) == expected
    except StoreError as error:
        return error
    finally:
        file.write_bytes(good)
    return None


@QUIET
@given(
    name=st.sampled_from(FILES),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    way=st.sampled_from(WAYS),
)
def test_a_flipped_bit_is_found_and_its_file_named(
    twins: tuple[Path, Path], name: str, place: float, bit: int, way: tuple[bool, int]
):
    def flip(good: bytes) -> bytes:
        at = int(place * len(good))
        return good[:at] + bytes([good[at] ^ (1 << bit)]) + good[at + 1 :]

    error = refused_or_unharmed(twins[0], name, way, flip)
    if error is None:
        # Between pages there is padding, and in the manifest white space: nothing that is used.
        assert name in (PAGES_FILE, MANIFEST_FILE)
    else:
        assert name in str(error)
        assert not error.retryable


@QUIET
@given(name=st.sampled_from(FILES), keep=st.floats(0, 1, exclude_max=True), way=st.sampled_from(WAYS))
def test_a_cut_file_is_found_and_named(
    twins: tuple[Path, Path], name: str, keep: float, way: tuple[bool, int]
):
    error = refused_or_unharmed(twins[0], name, way, lambda good: good[: int(keep * len(good))])
    if error is None:
        assert name == MANIFEST_FILE, "only its last line end can go"
    else:
        assert name in str(error)


@QUIET
@given(pages=st.lists(st.integers(0, 20), min_size=2, max_size=2, unique=True), way=st.sampled_from(WAYS))
def test_swapped_pages_are_found_and_named(twins: tuple[Path, Path], pages: list[int], way: tuple[bool, int]):
    def swap(good: bytes) -> bytes:
        one, two = (slice(p * 8192, (p + 1) * 8192) for p in pages)
        bad = bytearray(good)
        bad[one], bad[two] = good[two], good[one]
        return bytes(bad)

    error = refused_or_unharmed(twins[0], PAGES_FILE, way, swap)
    assert error is not None
    assert error.code == "page_corrupt"
    assert error.page in pages


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [PAGES_FILE, MANIFEST_FILE])
def test_a_file_of_another_store_is_found(twins: tuple[Path, Path], name: str, way: tuple[bool, int]):
    other = (twins[1] / name).read_bytes()
    error = refused_or_unharmed(twins[0], name, way, lambda _: other)
    assert error is not None


def test_a_whole_version_of_another_store_is_another_identity(twins: tuple[Path, Path], tmp_path: Path):
    moved = tmp_path / "moved"
    shutil.copytree(twins[0].parents[1], moved)
    before = MasterData.open(moved).identity
    shutil.rmtree(moved / "versions" / "000001")
    shutil.copytree(twins[1], moved / "versions" / "000001")
    assert MasterData.open(moved).identity != before
