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
from tidemill.master import MasterData, page_writer
from tidemill.master.layout import BLOCKS_FILE, INDEX_FILE, KEYS_FILE, MANIFEST_FILE, PAGES_FILE
from tidemill.master.page_kernels import DENSE, LINED, SHORT, is_whole

FILES = [PAGES_FILE, INDEX_FILE, KEYS_FILE, BLOCKS_FILE, MANIFEST_FILE]
WAYS = [(False, 1), (True, 3)]
KINDS = [0, LINED, LINED | DENSE, LINED | DENSE | SHORT]
QUIET = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


ROWS = 3000
Twins = dict[int, tuple[Path, Path]]


def built(path: Path, salt: int, kind: int) -> Path:
    columns: dict[str, Any] = {"id": [f"k{n}" for n in range(ROWS)], "p": ["x" * 50] * ROWS}
    if kind & DENSE:
        columns = {"id": np.arange(ROWS) * 3, "p": pa.array([b"x" * 50] * ROWS, pa.binary(50))}
    table = pa.table({**columns, "n": np.arange(ROWS) + salt})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_writer, "kind_for", lambda _: kind)
        MasterData.build(table, key="id", path=path, page_bytes=8192, order_by="n", pack=bool(kind & SHORT))
    return path / "versions" / "000001"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """For each kind of page two stores of the same shape with other values."""
    folder = tmp_path_factory.mktemp("twins")
    return {
        kind: (built(folder / f"a{kind}", 0, kind), built(folder / f"b{kind}", 100_000, kind))
        for kind in KINDS
    }


def everything(folder: Path, way: tuple[bool, int]) -> list[dict[str, Any]]:
    master = MasterData.open(folder.parents[1], direct=way[0], reads_in_flight=way[1])
    is_text = master.schema.field("id").type != pa.int64()
    keys = pa.array([f"k{n}" if is_text else 3 * n for n in range(ROWS)])
    assert master.lookup(keys)[1].num_rows == ROWS
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
    kind=st.sampled_from(KINDS),
)
def test_a_flipped_bit_is_found_and_its_file_named(
    stores: Twins, name: str, place: float, bit: int, way: tuple[bool, int], kind: int
):
    def flip(good: bytes) -> bytes:
        at = int(place * len(good))
        return good[:at] + bytes([good[at] ^ (1 << bit)]) + good[at + 1 :]

    error = refused_or_unharmed(stores[kind][0], name, way, flip)
    if error is None:
        # Behind the used bytes of a page there is padding, and in the manifest white space: nothing that is used.
        assert name in (PAGES_FILE, MANIFEST_FILE)
    else:
        assert name in str(error)
        assert not error.retryable


@QUIET
@given(
    name=st.sampled_from(FILES),
    keep=st.floats(0, 1, exclude_max=True),
    way=st.sampled_from(WAYS),
    kind=st.sampled_from(KINDS),
)
def test_a_cut_file_is_found_and_named(
    stores: Twins, name: str, keep: float, way: tuple[bool, int], kind: int
):
    error = refused_or_unharmed(stores[kind][0], name, way, lambda good: good[: int(keep * len(good))])
    if error is None:
        assert name == MANIFEST_FILE, "only its last line end can go"
    else:
        assert name in str(error)


@QUIET
@given(
    pages=st.lists(st.integers(0, 20), min_size=2, max_size=2, unique=True),
    way=st.sampled_from(WAYS),
    kind=st.sampled_from(KINDS),
)
def test_swapped_pages_are_found_and_named(stores: Twins, pages: list[int], way: tuple[bool, int], kind: int):
    def swap(good: bytes) -> bytes:
        one, two = (slice(p * 8192, (p + 1) * 8192) for p in pages)
        bad = bytearray(good)
        bad[one], bad[two] = good[two], good[one]
        return bytes(bad)

    error = refused_or_unharmed(stores[kind][0], PAGES_FILE, way, swap)
    assert error is not None
    assert (error.code, error.retryable) == ("page_corrupt", False)
    assert error.page in pages


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [PAGES_FILE, MANIFEST_FILE])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_store_is_found(stores: Twins, name: str, way: tuple[bool, int], kind: int):
    other = (stores[kind][1] / name).read_bytes()
    error = refused_or_unharmed(stores[kind][0], name, way, lambda _: other)
    assert error is not None


def test_a_whole_version_of_another_store_is_another_identity(stores: Twins, tmp_path: Path):
    twins = stores[LINED]
    moved = tmp_path / "moved"
    shutil.copytree(twins[0].parents[1], moved)
    before = MasterData.open(moved).identity
    shutil.rmtree(moved / "versions" / "000001")
    shutil.copytree(twins[1], moved / "versions" / "000001")
    assert MasterData.open(moved).identity != before


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_of_a_page_passes(stores: Twins, kind: int):
    """Each of a whole page, its kind and row count included; but those of padding that no line reaches into."""
    (file,) = MasterData.open(stores[kind][0].parents[1]).manifest.files
    page = np.fromfile(stores[kind][0] / PAGES_FILE, dtype=np.uint64, count=1024)
    salt, block = np.uint64(file.salt), np.uint64(0)
    assert is_whole(page, 0, len(page), salt, block)
    assert not is_whole(page, 0, len(page), salt, np.uint64(1))
    used = int(page[1]) >> 35
    checked = -(-used // 32) * 32 if kind & LINED else used
    for bit in range(64 * checked):
        page[bit // 64] ^= np.uint64(1) << np.uint64(bit % 64)
        assert not is_whole(page, 0, len(page), salt, block), bit
        page[bit // 64] ^= np.uint64(1) << np.uint64(bit % 64)
