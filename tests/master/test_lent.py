"""Memory that Arrow takes over and gives back: as long as a batch or a part of it is there, and no longer."""

import gc
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.recycled import Recycled
from tidemill.master import lent
from tidemill.master.lent import batch_of, head_of

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int32())])
ROWS = 1000
HEAD = head_of([2, 2])


def fill(room: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> None:
    """Columns of 0, 1, … and their halves."""
    base = room.ctypes.data
    begin = lent.put_head(HEAD, base, ROWS)
    half = begin + 8 * ROWS
    room[begin:half].view(np.int64)[:] = np.arange(ROWS)
    room[half : half + 4 * ROWS].view(np.int32)[:] = np.arange(ROWS) // 2
    lent.name_column(HEAD, base, 0, 0, 0, base + begin, 0)
    lent.name_column(HEAD, base, 1, 0, 0, base + half, 0)


def a_batch(memory: Recycled) -> pa.RecordBatch:
    return batch_of(memory, 20_000, fill, SCHEMA)


def places(memory: Recycled, times: int = 1) -> list[int]:
    """Where the next batches lie, each of which goes before the next one comes."""
    return [a_batch(memory).column("a").buffers()[1].address for _ in range(times)]


def test_a_batch_is_what_was_written() -> None:
    batch = a_batch(Recycled(10**6))
    batch.validate(full=True)
    assert batch.to_pydict() == {"a": list(range(ROWS)), "b": [n // 2 for n in range(ROWS)]}


def test_memory_is_used_again_when_the_batch_is_gone() -> None:
    assert len(set(places(Recycled(10**6), 20))) == 1


def test_memory_stays_while_a_part_of_the_batch_is_there() -> None:
    memory = Recycled(10**6)
    part = a_batch(memory).column("b").slice(10, 3)
    gc.collect()
    others = places(memory, 5)
    assert part.buffers()[1].address not in range(others[0], others[0] + 20_000)
    assert part.to_pylist() == [5, 5, 6]


def test_a_batch_outlives_who_lent_its_memory() -> None:
    batch = a_batch(Recycled(10**6))
    gc.collect()
    for _ in range(20):
        places(Recycled(10**6))
    assert batch.column("a").to_pylist() == list(range(ROWS))


def test_collected_batches_keep_their_rows() -> None:
    memory = Recycled(10**5)  # far less than they take
    batches = [a_batch(memory) for _ in range(100)]
    assert all(batch.column("a")[-1].as_py() == ROWS - 1 for batch in batches)
    batches.clear()
    places(memory, 20)
    assert len(lent._loans.get(memory, ())) < 20, "those that are gone are forgotten"


def test_batches_that_somebody_else_collects_are_not_in_the_way() -> None:
    others = Recycled(10**6)
    collected = [a_batch(others) for _ in range(200)]
    assert len(set(places(Recycled(10**6), 20))) == 1
    del collected
    for _ in range(10_000):
        places(Recycled(10**6))
        if others not in lent._loans:
            break
    assert others not in lent._loans, "of those that lend no more too"


def test_a_batch_may_be_dropped_in_any_thread() -> None:
    memory = Recycled(10**6)

    def take_and_drop() -> None:
        for _ in range(300):
            assert a_batch(memory).column("b")[-1].as_py() == (ROWS - 1) // 2

    threads = [threading.Thread(target=take_and_drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*places(memory, 30)}) <= 5, "as many as were there at a time"


def test_memory_comes_back_when_nothing_came_of_it() -> None:
    memory = Recycled(10**6)
    before = places(memory)

    def fail(_: object) -> None:
        raise ValueError("no")

    for _ in range(30):
        with pytest.raises(ValueError, match="no"):
            batch_of(memory, 20_000, fail, SCHEMA)  # type: ignore[arg-type]
        with pytest.raises(pa.ArrowInvalid):
            batch_of(memory, 20_000, fill, pa.schema([("a", pa.int64())]))
    assert places(memory) == before


def test_a_process_may_end_with_batches_in_hand() -> None:
    program = (
        "import sys; sys.path[:0] = ['tests/master']\n"
        "import test_lent\n"
        "from tidemill.core.recycled import Recycled\n"
        "batches = [test_lent.a_batch(Recycled(10**6)) for _ in range(50)]\n"
        "sys.batches = batches\n"
        "print(len(batches))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "50\n"), ended.stderr
