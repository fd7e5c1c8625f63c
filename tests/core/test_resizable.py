"""Memory that is resized where it is keeps its words, gives back what is behind them, and moves only beyond its limit."""

import re
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.resizable import Resizable


@settings(max_examples=100, deadline=None)
@given(most=st.integers(0, 40_000), sizes=st.lists(st.integers(0, 10_000), min_size=1, max_size=12))
def test_words_stay_through_any_sizes(most: int, sizes: list[int]) -> None:
    memory, kept = Resizable(most), np.zeros(0, dtype=np.uint64)
    for turn, size in enumerate(sizes):
        words = memory.words(size)
        assert len(words) == size
        same = min(len(kept), size)
        assert (words[:same] == kept[:same]).all()
        words[:] = np.arange(size) + 1000 * turn
        kept = words.copy()


def test_it_stays_where_it_is_up_to_its_limit_and_words_given_before_stay_good() -> None:
    memory = Resizable(80_000)
    first = memory.words(10)
    place = first.ctypes.data
    assert memory.words(10_000).ctypes.data == place
    first[3] = 7
    moved = memory.words(10_001)
    assert (moved[3], first[3]) == (7, 7)


def _resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found
    return 1024 * int(found[1])


def test_memory_behind_is_given_back() -> None:
    memory = Resizable(64 * 2**20)
    before = _resident_bytes()
    memory.words(8 * 2**20)[:] = 1
    full = _resident_bytes()
    memory.words(1000)
    assert full - before > 60 * 2**20
    assert _resident_bytes() - before < 8 * 2**20
