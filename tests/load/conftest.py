from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import SALES, InThread, LoaderProcess, load_sales, loader_in_thread


@pytest.fixture
def loader(tmp_path: Path) -> Iterator[InThread]:
    with loader_in_thread(tmp_path) as running:
        yield running


@pytest.fixture
def loader_process(tmp_path: Path) -> Iterator[LoaderProcess]:
    process = LoaderProcess(tmp_path)
    yield process
    if process.process is not None:
        process.process.kill()
        process.process.wait()


@pytest.fixture(scope="module")
def reading_loader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InThread]:
    """One loader with twenty sales for many reads that must not change it."""
    with loader_in_thread(tmp_path_factory.mktemp("reads")) as running:
        load_sales(running.client, running.client.open("shop", "q1", [SALES]), [0, 1])
        yield running
