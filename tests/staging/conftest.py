from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemill.staging import StagingLog

from .harness import SCHEMA, ReceiverProcess


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    StagingLog.create(tmp_path / "log", SCHEMA).close()
    return tmp_path / "log"


@pytest.fixture
def start_receiver(log_path: Path) -> Iterator[Callable[..., ReceiverProcess]]:
    """Starts receivers of the log, with more options if given; none outlives the test."""
    started: list[ReceiverProcess] = []

    def start(*options: str) -> ReceiverProcess:
        started.append(ReceiverProcess(log_path, *options))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def receiver(start_receiver: Callable[..., ReceiverProcess]) -> ReceiverProcess:
    return start_receiver()
