"""Generations of hot rows pass from worker to worker through files, and a damaged file is only a cold start."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from tidemill.join.parts.hot_rows import HotRows
from tidemill.spark.hot_files import HotFiles, note_baseline
from tidemill.spark.memory_sample import MemorySampler


def generation(*keys: int) -> HotRows:
    ones = np.ones(len(keys), np.int64)
    payload = pa.record_batch({"name": [f"row {k}" for k in keys]})
    return HotRows.build(np.array(keys, np.int64), ones, ones.astype(np.uint32), payload, "master 1")


def test_a_published_generation_reaches_the_others_once(tmp_path: Path) -> None:
    builder, other = HotFiles(tmp_path), HotFiles(tmp_path)
    assert other.newer() is None
    with builder.elected() as is_builder:
        assert is_builder
        builder.publish(generation(3, 5))
    found = other.newer()
    assert found is not None
    assert sorted(found.keys().tolist()) == [3, 5]
    assert other.newer() is None, "the same generation is not given out twice"


def test_only_one_builds_at_a_time_and_none_on_old_knowledge(tmp_path: Path) -> None:
    first, second = HotFiles(tmp_path), HotFiles(tmp_path)
    with first.elected() as is_first:
        assert is_first
        with second.elected() as is_second:
            assert not is_second
        first.publish(generation(1))
    with second.elected() as is_second:
        assert not is_second, "it has not seen the current generation yet"
    assert second.newer() is not None
    with second.elected() as is_second:
        assert is_second
        second.publish(generation(1, 2))
    assert len(list(tmp_path.glob("*.hot"))) == 1


def test_a_damaged_generation_is_a_cold_start(tmp_path: Path) -> None:
    builder = HotFiles(tmp_path)
    with builder.elected():
        builder.publish(generation(*range(500)))
    file = next(tmp_path.glob("*.hot"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert HotFiles(tmp_path).newer() is None


def test_memory_is_counted_above_what_the_worker_held_before(tmp_path: Path) -> None:
    note_baseline(tmp_path)
    sampler = MemorySampler(tmp_path)
    before = sampler.sample()
    held = np.ones(6_000_000)
    assert sampler.sample() >= before + held.nbytes * 0.9
    assert sampler.peak_bytes >= held.nbytes * 0.9
    (tmp_path / "workers" / "999999999").write_text("1.0 5")
    assert sampler.sample() >= held.nbytes * 0.9, "a worker that ended does not disturb"
