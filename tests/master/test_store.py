"""What a reader finds, and what it refuses to believe."""

import pickle
import random
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import StoreError
from tidemill.master import MasterData
from tidemill.master import reads as reads_of_pages
from tidemill.master.index import PageIndex
from tidemill.master.layout import PAGES_FILE


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store")
    rows = 4000
    table = pa.table({"id": np.arange(rows) // 2 * 3, "name": [f"name {n}" * 4 for n in range(rows)]})
    MasterData.build(table, key="id", path=path)
    return path


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy"))


def pages_file(path: Path) -> Path:
    return path / "versions" / "000001" / PAGES_FILE


def test_lookup_gives_all_rows_of_each_key(built: Path):
    master = MasterData.open(built)
    position, rows = master.lookup(np.array([9, 1, 5997, 9, 6000]))
    assert position.tolist() == [0, 0, 2, 2, 3, 3]
    assert rows.column("id").to_pylist() == [9, 9, 5997, 5997, 9, 9]
    assert rows.column("name")[2].as_py() == "name 3998" * 4


@given(
    st.lists(st.lists(st.integers(-5, 15), min_size=1, max_size=4), min_size=1, max_size=6),
    st.lists(st.integers(-7, 17)),
)
def test_locate_names_the_pages_that_can_hold_a_key(pages: list[list[int]], keys: list[int]):
    flat = sorted(key for page in pages for key in page)
    cuts = np.cumsum([0, *map(len, pages)])
    sorted_pages = [flat[a:b] for a, b in pairwise(cuts)]
    first = np.array([page[0] for page in sorted_pages])
    last = [page[-1] for page in sorted_pages]
    continues = np.array([False, *(one[-1] == two[0] for one, two in pairwise(sorted_pages))])
    nothing = np.zeros_like(first)
    index = PageIndex.of(first, nothing, nothing, nothing, continues, last[-1])
    found_first, found_count = index.locate(np.array(keys, dtype=np.int64))
    for key, a, n in zip(keys, found_first.tolist(), found_count.tolist(), strict=True):
        holding = [p for p, page in enumerate(sorted_pages) if key in page]
        # Where the key is absent, the one page whose neighbours leave room for it may still have to be read.
        could = [p for p in range(len(first)) if first[p] <= key < [*first, 99][p + 1] and key <= last[-1]]
        assert list(range(a, a + n)) == (holding or could)
        assert n < 2 or holding


def test_neighbouring_pages_come_with_one_read_and_are_counted(built: Path, monkeypatch):
    reads: list[int] = []
    real = reads_of_pages.read_pages
    # Sizes of the stretches are the fifth argument of the compiled read.
    monkeypatch.setattr(reads_of_pages, "read_pages", lambda *a: reads.extend(a[4].tolist()) or real(*a))
    master = MasterData.open(built)
    batches = master.read_pages([2, 3, 4, 7, 0])
    assert len(reads) == 3
    assert master.pages_read == 5
    assert master.bytes_read == sum(reads)
    assert all(b.equals(master.read_page(p)) for b, p in zip(batches, (2, 3, 4, 7, 0), strict=True))
    assert batches[3].column("id")[0].as_py() == master.index.first_code[7]


def test_a_handle_crosses_processes_by_path_and_version(built: Path):
    master = MasterData.open(built)
    other = pickle.loads(pickle.dumps(master))
    assert (other.path, other.version, other.identity) == (master.path, master.version, master.identity)
    assert len(pickle.dumps(master)) < 500
    assert other.read_page(3).equals(master.read_page(3))


def test_a_handle_keeps_its_version_when_a_new_one_is_built(copy: Path):
    old = MasterData.open(copy)
    new = MasterData.build(pa.table({"id": [1], "name": ["x"]}), key="id", path=copy)
    assert (old.rows, new.rows, MasterData.open(copy).version) == (4000, 1, 2)
    assert MasterData.open(copy, version=1).read_page(0).equals(old.read_page(0))
    assert old.identity != new.identity


def test_every_changed_bit_of_a_page_is_found(copy: Path):
    master = MasterData.open(copy)
    good = pages_file(copy).read_bytes()
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    for _ in range(100):
        page = chance.randrange(master.pages)
        begin = int(master.index.offset[page]) * 4096
        at = begin + chance.randrange(int.from_bytes(good[begin + 12 : begin + 16], "little"))
        bad = bytearray(good)
        bad[at] ^= 1 << chance.randrange(8)
        pages_file(copy).write_bytes(bad)
        with pytest.raises(StoreError) as refusal:
            MasterData.open(copy).read_page(page)
        facts = refusal.value
        assert (facts.code, facts.page, facts.file) == ("page_corrupt", page, str(pages_file(copy))), seed
        assert facts.offset == begin
        assert not facts.retryable


def test_swapped_pages_are_found(copy: Path):
    content = bytearray(pages_file(copy).read_bytes())
    size = 4096 * 4
    a, b = size, 2 * size
    content[a : a + size], content[b : b + size] = content[b : b + size], content[a : a + size]
    pages_file(copy).write_bytes(content)
    with pytest.raises(StoreError, match=r"page 1 of .*checksum"):
        MasterData.open(copy).read_pages([1, 2])


def test_a_cut_pages_file_is_found_at_open_and_while_open(copy: Path):
    master = MasterData.open(copy)
    with pages_file(copy).open("r+b") as file:
        file.truncate(20_000)
    with pytest.raises(StoreError) as refusal:
        MasterData.open(copy)
    assert refusal.value.code == "pages_cut"
    with pytest.raises(StoreError, match="is cut") as refusal:
        master.read_pages(range(master.pages))
    assert refusal.value.code == "page_corrupt"


@pytest.mark.parametrize("name", [PAGES_FILE, "index.arrow", "manifest.json"])
def test_a_missing_file_is_a_store_error_that_names_it(copy: Path, name: str):
    (copy / "versions" / "000001" / name).unlink()
    with pytest.raises(StoreError, match=name):
        MasterData.open(copy)


def test_a_changed_index_or_manifest_is_found(copy: Path):
    folder = copy / "versions" / "000001"
    for name, code in (("index.arrow", "index_corrupt"), ("manifest.json", "seal_broken")):
        good = (folder / name).read_bytes()
        (folder / name).write_bytes(
            good.replace(b"16384", b"16385") if name[0] == "m" else good[:-9] + b"x" * 9
        )
        with pytest.raises(StoreError) as refusal:
            MasterData.open(copy)
        assert refusal.value.code == code
        (folder / name).write_bytes(good)


def test_a_page_that_is_not_there_is_refused(built: Path):
    master = MasterData.open(built)
    for page in (-1, master.pages):
        with pytest.raises(StoreError, match="is not among"):
            master.read_page(page)


def test_no_master_data_says_how_to_build_it(tmp_path: Path):
    with pytest.raises(StoreError, match=r"MasterData\.build"):
        MasterData.open(tmp_path / "nothing")
