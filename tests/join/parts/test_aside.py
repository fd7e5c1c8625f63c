"""Work beside the body: done once, done before the block ends, errors handed on."""

import threading

import pytest

from tidemill.join.parts import aside
from tidemill.join.parts.aside import Aside


@pytest.fixture(params=[True, False], ids=["two cores", "one core"])
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Aside:
    cores = {0, 1} if request.param else {0}
    monkeypatch.setattr("os.sched_getaffinity", lambda _: cores)
    return Aside()


def test_work_is_done_once_before_the_block_ends(other: Aside):
    done: list[int] = []
    with other.beside(lambda: done.append(7), rows=10**6) as timed:
        pass
    assert done == [7]
    assert timed.result()[0] is None
    assert timed.result()[1] >= 0
    assert done == [7]


def test_large_work_runs_while_the_body_does_and_small_work_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    for rows, is_here in ((aside._WORTH_ROWS, False), (aside._WORTH_ROWS - 1, True)):
        with Aside().beside(threading.get_ident, rows=rows) as timed:
            pass
        assert (timed.result()[0] == threading.get_ident()) is is_here
    begun = threading.Event()
    with Aside().beside(begun.set, rows=aside._WORTH_ROWS):
        assert begun.wait(10), "it waited for the body"


def test_errors_reach_the_caller(other: Aside):
    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), other.beside(fail, rows=10**6):
        pass


def test_work_ends_even_if_the_body_fails(other: Aside):
    done: list[int] = []
    with pytest.raises(KeyError), other.beside(lambda: done.append(1), rows=10**6):
        raise KeyError("body")
    assert done == [1]
