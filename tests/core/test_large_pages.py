"""Large pages change where bytes lie, never what they are; where there are none, nothing changes at all."""

import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tidemill.core.large_pages import LARGE_PAGE_BYTES, gather_file, in_large_pages

IN_MEMORY = Path("/dev/shm")


@pytest.fixture(params=["memory", "disk"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    if request.param == "memory" and not os.access(IN_MEMORY, os.W_OK):
        pytest.skip("this machine has no /dev/shm")
    folder = IN_MEMORY if request.param == "memory" else tmp_path
    with tempfile.TemporaryFile(dir=folder) as opened:
        yield opened.fileno()


@pytest.mark.parametrize("size_bytes", [5000, LARGE_PAGE_BYTES, 2 * LARGE_PAGE_BYTES + 12_288])
def test_bytes_of_one_s_own_can_all_be_used(size_bytes: int) -> None:
    memory = in_large_pages(size_bytes)
    assert len(memory) == size_bytes
    assert memory.ctypes.data % LARGE_PAGE_BYTES == 0
    memory[:] = 7
    assert (memory == 7).all()


@pytest.mark.parametrize("size_bytes", [5000, 2 * LARGE_PAGE_BYTES + 12_288])
def test_a_file_holds_what_it_held_and_its_users_see_each_other(file: int, size_bytes: int) -> None:
    os.ftruncate(file, size_bytes)
    one = np.frombuffer(mmap.mmap(file, size_bytes), dtype=np.uint8)
    content = np.random.default_rng(1).integers(0, 256, size_bytes // 2).astype(np.uint8)
    one[: len(content)] = content
    is_gathered = gather_file(file, size_bytes)
    assert is_gathered in ((False,) if size_bytes < LARGE_PAGE_BYTES else (True, False))
    other = np.frombuffer(mmap.mmap(file, size_bytes), dtype=np.uint8)
    assert (other[: len(content)] == content).all()
    assert not other[len(content) :].any()
    one[-1], other[17] = 5, 9
    assert (other[-1], one[17]) == (5, 9)
