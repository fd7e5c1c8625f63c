"""The sketch never counts too little, forgets by halves and stays in its bytes."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.join.parts.frequency import FrequencySketch


@given(st.lists(st.integers(-50, 50), max_size=300), st.booleans())
def test_an_estimate_is_at_least_the_count(keys: list[int], is_short: bool):
    sketch = FrequencySketch(1024, is_short=is_short)
    sketch.add(np.array(keys, dtype=np.int64))
    counts = Counter(keys)
    distinct = np.array(sorted(counts), dtype=np.int64)
    assert all(
        estimate >= min(counts[key], 255)
        for key, estimate in zip(distinct.tolist(), sketch.estimate(distinct).tolist(), strict=True)
    )


@pytest.mark.parametrize("is_short", [False, True])
def test_frequent_keys_stand_out_among_many_rare_ones(is_short: bool):
    sketch = FrequencySketch(400_000, is_short=is_short)
    rare = np.arange(20_000, dtype=np.int64)
    sketch.add(np.concatenate([rare, np.full(50, 77_777)]))
    assert sketch.estimate(np.array([77_777])).tolist() == [50]
    assert (sketch.estimate(rare) > 3).mean() < 0.01
    assert sketch.bytes_held <= 400_000


@pytest.mark.parametrize(("is_short", "most"), [(False, 65_535), (True, 255)])
def test_counts_end_where_a_counter_does(is_short: bool, most: int):
    sketch = FrequencySketch(4096, is_short=is_short)
    told = sketch.add(np.full(most + 20, 7))
    assert told[-1] == sketch.estimate(np.array([7]))[0] == most
    sketch.halve()
    assert sketch.estimate(np.array([7]))[0] == most // 2


def test_short_counters_are_twice_as_many():
    short, long = (FrequencySketch(4096, is_short=is_short) for is_short in (True, False))
    assert short.width == 2 * long.width
    assert short.bytes_held == long.bytes_held <= 4096
