"""No more tasks of a host run a join than its memory was divided among, however many executors came."""

import os
import threading
from pathlib import Path

import pytest

from tidemill.core.errors import StoreError
from tidemill.spark.seats import HostSeats

TOKEN, OTHER = "00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"


class Process:
    """What one worker process holds: seats of its own, and how often it was told to let go."""

    def __init__(self, folder: Path, token: str = TOKEN, seats: int = 2) -> None:
        self.seats = HostSeats(folder, token, seats)
        self.let_go = 0

    def _let_go(self) -> None:
        self.let_go += 1

    def taken(self, most_seconds: float = 60):
        return self.seats.taken(self._let_go, most_seconds)


def test_one_too_many_is_refused_in_the_end_and_may_try_again(tmp_path: Path) -> None:
    first, second, third = (Process(tmp_path) for _ in range(3))
    with first.taken(), second.taken():
        with pytest.raises(StoreError, match="2 tasks of this host") as refusal, third.taken(0.05):
            raise AssertionError("there was no seat")
        assert (refusal.value.code, refusal.value.retryable) == ("host_is_full", True)
        assert third.let_go == 1, "it holds nothing while it waits"
        with Process(tmp_path, OTHER).taken(0):
            pass  # another call has seats of its own
    with third.taken(0):
        pass


def test_who_waits_gets_the_seat_that_becomes_free_and_keeps_nothing_afterwards(tmp_path: Path) -> None:
    first, second = (Process(tmp_path, seats=1) for _ in range(2))
    waits, came = threading.Event(), threading.Event()
    second._let_go = waits.set

    def come() -> None:
        with second.taken():
            came.set()

    with first.taken():
        late = threading.Thread(target=come)
        late.start()
        assert waits.wait(30)
        assert not came.is_set()
    late.join(30)
    assert came.is_set()
    assert first.let_go == 0
    waits.clear()
    with second.taken(0):
        pass
    assert waits.is_set(), "others may need the memory that it would keep"


def test_after_some_tasks_without_waiting_a_process_keeps_its_join_again(tmp_path: Path) -> None:
    first, second = (Process(tmp_path, seats=1) for _ in range(2))
    with first.taken(), pytest.raises(StoreError), second.taken(0):
        pass
    told = []
    for _ in range(40):
        with second.taken(0):
            pass
        told.append(second.let_go)
    assert told[0] < told[1]
    assert told[-1] == told[-10]


def test_a_process_that_dies_leaves_its_seat(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with Process(tmp_path, seats=1).taken():
            os._exit(0)
    os.waitpid(child, 0)
    with Process(tmp_path, seats=1).taken(0):
        pass
