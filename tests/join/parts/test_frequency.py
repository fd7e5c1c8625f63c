"""The sketch never counts too little, forgets by halves and stays in its bytes."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidemill.join.parts.frequency import FrequencySketch


@given(st.lists(st.integers(-50, 50), max_size=300))
def test_an_estimate_is_at_least_the_count(keys: list[int]):
    sketch = FrequencySketch(1024)
    sketch.add(np.array(keys, dtype=np.int64))
    counts = Counter(keys)
    distinct = np.array(sorted(counts), dtype=np.int64)
    assert all(
        estimate >= counts[key]
        for key, estimate in zip(distinct.tolist(), sketch.estimate(distinct).tolist(), strict=True)
    )


def test_frequent_keys_stand_out_among_many_rare_ones():
    sketch = FrequencySketch(400_000)
    rare = np.arange(20_000, dtype=np.int64)
    sketch.add(np.concatenate([rare, np.full(50, 77_777)]))
    assert sketch.estimate(np.array([77_777])).tolist() == [50]
    assert (sketch.estimate(rare) > 3).mean() < 0.01
    assert sketch.bytes_held <= 400_000
