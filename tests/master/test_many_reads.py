"""Many reads with one call: the same bytes as one after the other, whatever the kernel makes of them."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidemill.master import MasterData
from tidemill.master.many_reads import MOST_AT_ONCE, READS_ASKED, Contexts, read_many

SIZE = 512
CONTENT = np.random.default_rng(3).integers(0, 256, 400 * SIZE).astype(np.uint8)


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(CONTENT.tobytes())
    handle = os.open(tmp_path / "file", os.O_RDONLY)
    yield handle
    os.close(handle)


@pytest.fixture
def context() -> Iterator[int]:
    contexts = Contexts()
    context = contexts.take()
    if not context:
        pytest.skip("this kernel does not offer asynchronous reads")
    yield context
    contexts.give_back(context, 0)
    contexts.close()


def read(context: int, handle: int, blocks: "np.typing.NDArray[np.int64]") -> tuple[int, list[bool]]:
    """How many were said to be read, and which of them were."""
    room = np.zeros(len(blocks) * SIZE, dtype=np.uint8)
    places, sizes = np.arange(len(blocks)) * SIZE, np.full(len(blocks), SIZE)
    count = read_many(context, np.full(len(blocks), handle), blocks * SIZE, places, sizes, room.ctypes.data)
    found, wanted = room.reshape(-1, SIZE), np.resize(CONTENT, 500 * SIZE).reshape(-1, SIZE)[blocks]
    return count, (found == wanted).all(axis=1).tolist()


@pytest.mark.parametrize("reads", [1, 5, MOST_AT_ONCE, MOST_AT_ONCE + 1, 300])
def test_every_stretch_comes_to_its_place(context: int, handle: int, reads: int) -> None:
    blocks = np.random.default_rng(reads).permutation(400)[:reads]
    assert read(context, handle, blocks) == (reads, [True] * reads)


def test_a_short_read_ends_before_its_lot(context: int, handle: int) -> None:
    blocks = np.arange(2 * MOST_AT_ONCE)
    blocks[MOST_AT_ONCE + 3] = 400  # behind the end of the file
    count, found = read(context, handle, blocks)
    assert count == MOST_AT_ONCE
    assert all(found[:count])


@pytest.mark.parametrize("bad", ["context", "file"])
def test_a_refusal_leaves_all_to_be_read(context: int, handle: int, bad: str) -> None:
    context, handle = (context, 10_000) if bad == "file" else (context + 8, handle)
    assert read(context, handle, np.arange(5))[0] == 0


def test_reads_are_counted_where_the_kernel_was_asked_for_them(context: int) -> None:
    contexts = Contexts()
    before = READS_ASKED.reads
    contexts.give_back(contexts.take(), 7)
    contexts.give_back(0, 9)  # nobody was asked: these were read one after the other
    assert READS_ASKED.reads == before + 7
    contexts.close()


def test_scattered_pages_are_the_same_with_and_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"id": range(5000), "name": [f"name {n * 7919 % 5000}" for n in range(5000)]})
    MasterData.build(rows, key="id", path=tmp_path, page_bytes=4096)
    pages = np.arange(0, 30, 3)

    def names(master: MasterData) -> list[dict[str, object]]:
        found = master.begin_pages(pages).result()
        return master.layout.decode(found.buffer, found.at).to_pylist()

    together = names(MasterData.open(tmp_path, direct=True))
    assert len(together) > 500
    monkeypatch.setattr(Contexts, "take", lambda _: 0)
    assert names(MasterData.open(tmp_path, direct=True)) == together
