"""The page on disk, as documented, and how runs of pages come into memory."""

import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import StoreError
from tidemill.master import MasterData
from tidemill.master.page_kernels import MAY_END, MUST_END, checksum, cut_pages, page_sizes

P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
MASK = 2**64 - 1
HOWS = [(direct, flight) for direct in (False, True) for flight in (1, 4)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = 20_000
    folder = tmp_path_factory.mktemp("store")
    table = pa.table(
        {"n": np.arange(rows), "id": np.arange(rows) // 2, "s": [f"row {n}" for n in range(rows)]}
    )
    MasterData.build(table, key="id", path=folder, page_bytes=4096)
    return folder


def told(words: list[int], seed: int) -> int:
    """The checksum as the documentation has it, in plain Python."""

    def mixed(lane: int, word: int) -> int:
        lane = (lane + word * P2) & MASK
        return ((lane << 31 | lane >> 33) & MASK) * P1 & MASK

    lanes = [seed, (seed + P1) & MASK, (seed + P2) & MASK, (seed + P3) & MASK]
    lanes += [lane ^ MASK for lane in lanes]
    whole = len(words) // 8 * 8
    for at in range(0, whole, 8):
        lanes = [mixed(lane, word) for lane, word in zip(lanes, words[at : at + 8], strict=True)]
    total = len(words)
    for word in [*words[whole:], *lanes]:
        total = mixed(total, word)
    total ^= total >> 29
    total = total * P3 & MASK
    return total ^ total >> 32


def test_pages_are_laid_out_as_documented(path: Path):
    master = MasterData.open(path)
    (file,) = master.manifest.files
    stored = (path / file.name).read_bytes()
    rows = [(n // 2, n, f"row {n}") for n in range(20_000)]
    done = 0
    for page in range(master.pages):
        content = stored[page * 4096 : (page + 1) * 4096]
        found, count, used = struct.unpack_from("<QII", content)
        seed = file.salt ^ (page * P3 + P1) & MASK
        assert told(list(struct.unpack_from(f"<{used // 8 - 1}Q", content, 8)), seed) == found
        assert content[used:] == bytes(4096 - used)
        starts = struct.unpack_from(f"<{count}I", content, 16)
        assert starts[0] == 16 + (count * 4 + 7) // 8 * 8
        for start, (code, n, text) in zip(starts, rows[done : done + count], strict=True):
            assert start % 8 == 0
            assert struct.unpack_from("<q", content, start) == (code,)
            assert text.encode() in content[start : start + 64]
            assert struct.pack("<q", n) in content[start : start + 64]
        done += count
    assert done == len(rows)


@given(st.lists(st.integers(0, MASK), min_size=1, max_size=40), st.integers(0, MASK))
def test_the_checksum_is_the_documented_one(words: list[int], seed: int):
    assert checksum(np.array(words, dtype=np.uint64), 0, len(words), np.uint64(seed)) == told(words, seed)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, MASK), min_size=1, max_size=24), st.integers(0, MASK))
def test_no_changed_bit_passes(words: list[int], seed: int):
    good = np.array(words, dtype=np.uint64)
    expected = checksum(good, 0, len(good), np.uint64(seed))
    for bit in range(64 * len(good)):
        bad = good.copy()
        bad[bit // 64] ^= np.uint64(1) << np.uint64(bit % 64)
        assert checksum(bad, 0, len(bad), np.uint64(seed)) != expected


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=60),
    st.lists(st.sampled_from([0, MAY_END, MUST_END]), min_size=60, max_size=60),
    st.integers(1, 200),
)
def test_pages_are_full_and_end_only_where_they_may(sizes: list[int], ends: list[int], page_words: int):
    rows = np.array(sizes) * 8
    may_end = np.array([*ends[: len(sizes) - 1], MUST_END], dtype=np.uint8)
    first = np.empty(len(sizes) + 1, dtype=np.int64)
    pages = cut_pages(rows, may_end, np.full(len(rows), page_words * 8), first)
    cuts = [*first[:pages].tolist(), len(sizes)]
    assert cuts == sorted(set(cuts))
    assert cuts[0] == 0
    allowed = [*(np.flatnonzero(may_end) + 1).tolist()]

    def fits(begin: int, end: int) -> bool:
        return int(page_sizes(rows[begin:end].sum(), end - begin)) <= page_words * 8

    assert set(cuts) >= set((np.flatnonzero(may_end == MUST_END) + 1).tolist())
    for begin, end in pairwise(cuts):
        assert end in allowed
        next_end = next((a for a in allowed if a > end), None)
        may_go_on = next_end is not None and may_end[end - 1] != MUST_END
        assert not (may_go_on and fits(begin, next_end)), "a page takes what fits"
        assert fits(begin, end) or end == next(a for a in allowed if a > begin), "or the least that it may"


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_rows_of_a_run_are_those_of_its_pages(path: Path, how: tuple[bool, int]):
    master = MasterData.open(path, direct=how[0], reads_in_flight=how[1])
    for first, pages in ((0, 1), (5, 40), (0, master.pages), (master.pages - 1, 1), (3, 0)):
        rows = master.read_rows(first, pages)
        assert rows.buffer.ctypes.data % (4096 if how[0] else 8) == 0
        assert not rows.buffer.flags.writeable
        batch = master.layout.decode(rows.buffer, rows.at)
        expected = master.read_pages(range(first, first + pages))
        assert batch.equals(master.read_batch(range(first, first + pages)))
        assert batch.column("id").to_numpy().tolist() == rows.codes.tolist()
        sizes = [page.num_rows for page in expected]
        assert np.diff(rows.page_start).tolist() == sizes
        assert [
            batch.slice(at, n) for at, n in zip(rows.page_start.tolist(), sizes, strict=False)
        ] == expected
        held = rows.buffer.nbytes + rows.codes.nbytes + rows.at.nbytes
        assert held <= master.run_buffer_bytes(first, pages) <= 3 * held + 2**13


@pytest.mark.parametrize("flight", [1, 3])
def test_reads_that_were_begun_come_in_any_order_and_are_counted(path: Path, flight: int):
    master = MasterData.open(path, reads_in_flight=flight)
    begun = [master.begin_read(first, 4) for first in range(0, 40, 4)]
    for first, reading in reversed(list(zip(range(0, 40, 4), begun, strict=True))):
        assert reading.result().codes[0] == master.index.first_code[first]
    assert (master.pages_read, master.bytes_read) == (40, 40 * 4096)
    master.close()


@pytest.mark.parametrize("flight", [1, 3])
def test_pages_in_any_order_come_as_one_batch(path: Path, flight: int):
    master = MasterData.open(path, reads_in_flight=flight)
    wanted = [7, 8, 9, 3, 3, 100, 0]
    batch, page_start = master.read_paged(wanted)
    pages = master.read_pages(wanted)
    assert batch.equals(pa.Table.from_batches(pages).combine_chunks().to_batches()[0])
    assert np.diff(page_start).tolist() == [page.num_rows for page in pages]
    assert master.read_batch([]).num_rows == 0


@pytest.mark.parametrize("flight", [1, 3])
def test_what_fails_while_it_is_read_ahead_fails_when_it_is_asked_for(
    path: Path, tmp_path: Path, flight: int
):
    import shutil

    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    file = copy / "versions/000001/pages.bin"
    content = bytearray(file.read_bytes())
    content[12 * 4096 + 700] ^= 1
    file.write_bytes(content)
    master = MasterData.open(copy, reads_in_flight=flight)
    good, bad = master.begin_read(0, 12), master.begin_read(10, 5)
    assert len(good.result().page_start) == 13
    with pytest.raises(StoreError, match=r"page 12 of .* at offset 49152 fails its checksum") as refusal:
        bad.result()
    assert refusal.value.page == 12


def test_the_index_of_ten_million_rows_is_small(path: Path):
    master = MasterData.open(path)
    assert master.index_bytes == 16 * master.pages
