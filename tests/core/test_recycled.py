"""Blocks that are used again: larger where they are, and never more than twice of what may be in use."""

import numpy as np
import pytest

from tidemill.core.recycled import Recycled


def test_no_bytes_are_lent_too():
    memory = Recycled(1000)
    assert len(memory.array(0)) == 0


@pytest.mark.parametrize("size_bytes", [70_000, 1_000_000])
def test_what_came_back_is_lent_again(size_bytes: int):
    memory = Recycled(2 * size_bytes)
    block = memory.lend(size_bytes)
    memory.take_back(block)
    assert memory.lend(size_bytes - 5000) is block


def test_a_block_becomes_larger_where_it_is_and_keeps_what_it_holds():
    memory = Recycled(4_000_000)
    block = memory.lend(1_000_000)
    block.bytes[:1_000_000] = 7
    memory.take_back(block)
    assert memory.lend(1_400_000) is block
    assert block.size_bytes >= 1_400_000
    assert (block.bytes[:1_000_000] == 7).all()
    block.bytes[1_399_999] = 1


def test_the_smallest_that_is_large_enough_is_taken():
    memory = Recycled(10_000_000)
    large, small = memory.lend(3_000_000), memory.lend(1_000_000)
    memory.take_back(small)
    memory.take_back(large)
    assert memory.lend(900_000) is small


def test_all_blocks_together_stay_below_twice_the_limit():
    limit_bytes = 3_000_000
    memory, rng = Recycled(limit_bytes), np.random.default_rng(1)
    out = []
    for size in rng.integers(100_000, 1_400_000, 400):
        out.append(memory.lend(int(size)))
        if len(out) == 2:
            memory.take_back(out.pop(0))
        held = [*out, *memory._free]
        assert len({id(block) for block in held}) == len(held)
        assert sum(block.size_bytes for block in held) <= 2 * limit_bytes
