"""Deaths of the loader: nothing lost, nothing doubled."""

import pickle
import resource
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidemill.core.errors import LoadError

from .harness import SALES, InThread, LoaderProcess, ids_in, load_sales, put_sales, sales


@pytest.mark.parametrize(
    ("fail", "answer"), [("after_commit:2", "already"), ("before_commit:2", "committed")]
)
def test_a_death_around_commit_is_bridged_by_the_retry(
    loader_process: LoaderProcess, fail: str, answer: str
) -> None:
    loader_process.start(fail=fail)
    client = loader_process.client
    opened = client.open("shop", "q1", [SALES])
    load_sales(client, opened, [0])
    ref = put_sales(client, opened.ticket, 1, sales(10, 10))
    loader_process.restart_when_dead()
    done = client.commit(opened.ticket, 1, start=10, end=20, blocks=[ref])
    loader_process.wait_for_restart()
    assert done.status == answer
    load_sales(client, opened, [2])
    assert ids_in(client) == list(range(30))


def test_staged_blocks_survive_kill_9(loader_process: LoaderProcess) -> None:
    loader_process.start()
    client = loader_process.client
    opened = client.open("shop", "q1", [SALES])
    ref = put_sales(client, opened.ticket, 0, sales(0, 10))
    assert loader_process.stop(signal.SIGKILL) == -signal.SIGKILL
    loader_process.start()
    assert client.commit(opened.ticket, 0, start=0, end=10, blocks=[ref]).status == "committed"
    assert ids_in(client) == list(range(10))


def test_sigterm_is_clean_and_fences_outlive_it(loader_process: LoaderProcess) -> None:
    loader_process.start()
    client = loader_process.client
    zombie = client.open("shop", "q1", [SALES])
    load_sales(client, client.open("shop", "q1", [SALES]), [0])
    assert loader_process.stop(signal.SIGTERM) == 0
    assert not loader_process.warehouse.with_name("w.duckdb.wal").exists()
    loader_process.start()
    with pytest.raises(LoadError, match="fence 1 is old, 2 is current"):
        put_sales(client, zombie.ticket, 1, sales(10, 1))
    assert ids_in(client) == list(range(10))
    assert loader_process.stop(signal.SIGINT) == 0
    assert (loader_process.folder / "stderr.txt").read_text() == ""


def test_a_full_disk_is_a_503_that_heals_once_there_is_room(loader_process: LoaderProcess) -> None:
    """A limit on file size stands for the full disk: the write of the log fails inside COMMIT."""
    loader_process.start()
    client = loader_process.client
    opened = client.open("shop", "q1", [SALES])
    load_sales(client, opened, [0], rows=1000)
    ref = put_sales(client, opened.ticket, 1, sales(1000, 1000))
    assert loader_process.process is not None
    pid = loader_process.process.pid
    free = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, free[1]))
    impatient = loader_process.client
    impatient.deadline_seconds = 0.5
    with pytest.raises(LoadError) as caught:
        impatient.commit(opened.ticket, 1, start=1000, end=2000, blocks=[ref])
    assert (caught.value.code, caught.value.retryable) == ("warehouse_down", True)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, free)
    assert client.commit(opened.ticket, 1, start=1000, end=2000, blocks=[ref]).rows == {"sales": 1000}
    assert ids_in(client) == list(range(2000))


def test_a_read_that_finds_the_handle_dead_wakes_the_writer_to_reopen_it(loader: InThread) -> None:
    load_sales(loader.client, loader.client.open("shop", "q1", [SALES]), [0])
    loader.engine._warehouse.close()
    assert ids_in(loader.client) == list(range(10))


def test_pipelines_that_commit_at_once_do_not_disturb_each_other(loader: InThread) -> None:
    def run(pipeline: int) -> None:
        client = pickle.loads(pickle.dumps(loader.client))
        opened = client.open(f"shop{pipeline}", f"q{pipeline}", [SALES])
        for batch_id in range(5):
            ref = put_sales(client, opened.ticket, batch_id, sales(1000 * pipeline + 10 * batch_id, 10))
            client.commit(opened.ticket, batch_id, start=batch_id, end=batch_id + 1, blocks=[ref])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, range(6)))
    assert ids_in(loader.client) == [1000 * pipeline + n for pipeline in range(6) for n in range(50)]
