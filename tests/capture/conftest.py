from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .harness import Staging


@pytest.fixture
def start_staging() -> Iterator[Callable[..., Staging]]:
    """Makes logs with running receivers; none outlives the test."""
    started: list[Staging] = []

    def start(*arguments: object, **options: object) -> Staging:
        started.append(Staging(*arguments, **options))
        started[-1].start()
        return started[-1]

    yield start
    for staging in started:
        staging.kill()


@pytest.fixture
def staging(start_staging: Callable[..., Staging], tmp_path: Path) -> Staging:
    return start_staging(tmp_path)
