"""The page on disk, as documented, and how runs of pages come into memory."""

import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import StoreError
from tidemill.master import MasterData, page_writer
from tidemill.master.page_checksums import LINE_WORDS, line_checksum, word_checksum
from tidemill.master.page_kernels import DENSE, LINED, MAY_END, MUST_END, SHORT, cut_pages, page_sizes

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


def mixed(lane: int, word: int) -> int:
    lane = (lane + word * P2) & MASK
    return ((lane << 31 | lane >> 33) & MASK) * P1 & MASK


def finished(total: int) -> int:
    total ^= total >> 29
    total = total * P3 & MASK
    return total ^ total >> 32


def told_of_lines(words: list[int], seed: int) -> int:
    """The checksum as the documentation has it, in plain Python."""
    lanes = [(seed + lane * P2) & MASK for lane in range(32)]
    words = [0, *words[1:]]
    for at in range(0, len(words), 32):
        sums = [(lane + word) & MASK for lane, word in zip(lanes, words[at : at + 32], strict=True)]
        lanes = [(x ^ x >> 32) * 0x9E3779B1 & MASK for x in sums]
    total = len(words) // 32
    for lane in lanes:
        total = mixed(total, lane)
    return finished(total)


def told(words: list[int], seed: int) -> int:
    """That of pages before format 6."""
    lanes = [seed, (seed + P1) & MASK, (seed + P2) & MASK, (seed + P3) & MASK]
    lanes += [lane ^ MASK for lane in lanes]
    whole = len(words) // 8 * 8
    for at in range(0, whole, 8):
        lanes = [mixed(lane, word) for lane, word in zip(lanes, words[at : at + 8], strict=True)]
    total = len(words)
    for word in [*words[whole:], *lanes]:
        total = mixed(total, word)
    return finished(total)


def rows_of_pages(stored: bytes, salt: int) -> list[list[bytes]]:
    """What follows from where a row of each page begins, after all that is documented of pages of 4 KiB was checked."""
    found = []
    for page in range(len(stored) // 4096):
        content = stored[page * 4096 : (page + 1) * 4096]
        seal, count, used = struct.unpack_from("<QII", content)
        kind, used = used % 8, used // 8 * 8
        seed = salt ^ (page * P3 + P1) & MASK
        words = list(struct.unpack("<512Q", content))
        if kind & LINED:
            assert seal == told_of_lines(words[: -(-used // 256) * 32], seed)
        else:
            assert seal == told(words[1 : used // 8], seed)
        assert content[used:] == bytes(4096 - used)
        if kind & DENSE:
            row_bytes = (used - 16) // count
            assert used == 16 + count * row_bytes
            starts = tuple(range(16, used, row_bytes))
        else:
            starts = struct.unpack_from(f"<{count}I", content, 16)
            assert starts[0] == 16 + (count * 4 + 7) // 8 * 8
        assert all(start % 8 == 0 for start in starts)
        found.append([content[start:used] for start in starts])
    return found


@pytest.mark.parametrize("kind", [0, LINED])
def test_pages_are_laid_out_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int):
    with monkeypatch.context() as patch:
        patch.setattr(page_writer, "kind_for", lambda _: kind)
        rows = 3_000
        table = pa.table(
            {"n": np.arange(rows), "id": np.arange(rows) // 2, "s": [f"row {n}" for n in range(rows)]}
        )
        master = MasterData.build(table, key="id", path=tmp_path, page_bytes=4096)
    (file,) = master.manifest.files
    pages = rows_of_pages((tmp_path / file.name).read_bytes(), file.salt)
    assert len(pages) == master.pages
    found = [row for page in pages for row in page]
    for n, row in enumerate(found):
        assert struct.unpack_from("<q", row) == (n // 2,)
        assert f"row {n}".encode() in row[:64]
        assert struct.pack("<q", n) in row[:64]
    assert len(found) == rows
    assert master.read_batch(range(master.pages)).column("n").to_pylist() == list(range(rows))


def test_rows_of_one_length_lie_without_gaps(tmp_path: Path):
    table = pa.table({"id": np.arange(3_000) * 7, "n": np.arange(3_000, dtype=np.int16)})
    master = MasterData.build(table, key="id", path=tmp_path, page_bytes=4096)
    (file,) = master.manifest.files
    pages = rows_of_pages((tmp_path / file.name).read_bytes(), file.salt)
    # A code, a number of two bytes and the bits: 16 bytes; the head of the page takes as much.
    assert [len(page) for page in pages] == [255] * 11 + [3_000 - 11 * 255]
    found = [struct.unpack_from("<qh", row) for page in pages for row in page]
    assert found == [(7 * n, n) for n in range(3_000)]
    assert master.lookup(pa.array([7 * 2_999]))[1].to_pylist() == [{"id": 7 * 2_999, "n": 2_999}]


@given(st.lists(st.integers(0, MASK), min_size=1, max_size=40), st.integers(0, MASK))
def test_the_checksum_of_words_is_the_documented_one(words: list[int], seed: int):
    assert word_checksum(np.array(words, dtype=np.uint64), 0, len(words), np.uint64(seed)) == told(
        words, seed
    )


@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, MASK), st.integers(0, 2**32))
def test_the_checksum_of_lines_is_the_documented_one(lines: int, begin: int, seed: int, chance: int):
    words = np.random.default_rng(chance).integers(0, MASK, begin + 32 * lines, np.uint64, endpoint=True)
    found = line_checksum(words, begin, lines, np.uint64(seed))
    assert found == told_of_lines(words[begin:].tolist(), seed)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, MASK), min_size=1, max_size=24), st.integers(0, MASK))
def test_no_changed_bit_passes_the_checksum_of_words(words: list[int], seed: int):
    good = np.array(words, dtype=np.uint64)
    expected = word_checksum(good, 0, len(good), np.uint64(seed))
    for bit in range(64 * len(good)):
        bad = good.copy()
        bad[bit // 64] ^= np.uint64(1) << np.uint64(bit % 64)
        assert word_checksum(bad, 0, len(bad), np.uint64(seed)) != expected


def sealed_lines(lines: int, chance: int) -> tuple[npt.NDArray[np.uint64], np.uint64]:
    """Words of which many are alike, as in pages, and their checksum."""
    chances = np.random.default_rng(chance)
    words = chances.choice(chances.integers(0, MASK, 5, np.uint64, endpoint=True), LINE_WORDS * lines)
    words[chances.random(len(words)) < 0.3] = 0
    return words, line_checksum(words, 0, lines, np.uint64(chance))


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 3), st.integers(0, 2**32))
def test_no_changed_bit_passes_the_checksum_of_lines(lines: int, chance: int):
    words, expected = sealed_lines(lines, chance)
    for bit in range(64 * len(words)):
        words[bit // 64] ^= np.uint64(1) << np.uint64(bit % 64)
        is_seen = line_checksum(words, 0, lines, np.uint64(chance)) != expected
        assert is_seen == (bit >= 64), "all but those of the word that holds the checksum"
        words[bit // 64] ^= np.uint64(1) << np.uint64(bit % 64)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**32), st.integers(1, 2 * LINE_WORDS - 1), st.integers(0, 63), st.integers(1, 40))
def test_no_second_bit_undoes_a_changed_one(chance: int, word: int, bit: int, further: int):
    """Least of all one of the same lane in the next line, which a round of one multiplication meets half mixed."""
    words, expected = sealed_lines(3, chance)
    words[word] ^= np.uint64(1) << np.uint64(bit)
    for other in {word + LINE_WORDS, (word + further) % len(words) or 1} - {word}:
        for second in range(64):
            words[other] ^= np.uint64(1) << np.uint64(second)
            assert line_checksum(words, 0, 3, np.uint64(chance)) != expected
            words[other] ^= np.uint64(1) << np.uint64(second)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=60),
    st.lists(st.sampled_from([0, MAY_END, MUST_END]), min_size=60, max_size=60),
    st.integers(1, 200),
    st.sampled_from([0, LINED, LINED | SHORT, LINED | DENSE, LINED | DENSE | SHORT]),
)
def test_pages_are_full_and_end_only_where_they_may(
    sizes: list[int], ends: list[int], page_words: int, kind: int
):
    rows = np.array(sizes) * 8
    may_end = np.array([*ends[: len(sizes) - 1], MUST_END], dtype=np.uint8)
    first = np.empty(len(sizes) + 1, dtype=np.int64)
    pages = cut_pages(rows, may_end, np.full(len(rows), page_words * 8), kind, first)
    cuts = [*first[:pages].tolist(), len(sizes)]
    assert cuts == sorted(set(cuts))
    assert cuts[0] == 0
    allowed = [*(np.flatnonzero(may_end) + 1).tolist()]

    def fits(begin: int, end: int) -> bool:
        return int(page_sizes(rows[begin:end].sum(), end - begin, kind)) <= page_words * 8

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
