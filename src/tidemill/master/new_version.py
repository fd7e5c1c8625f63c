"""A version comes to be: alone, aside, whole, and only then current."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidemill.core.errors import StoreError
from tidemill.core.files import sync_folder
from tidemill.master.layout import PAGES_FILE, switch_current, version_folder, versions_on_disk


@dataclass(frozen=True)
class NewVersion:
    """Where the files of a version are written before it has its place."""

    number: int
    folder: Path

    @property
    def pages_name(self) -> str:
        """Of its own pages file, relative to the store, once the version is in its place."""
        return f"versions/{self.number:06d}/{PAGES_FILE}"


@contextmanager
def new_version(path: Path) -> Iterator[NewVersion]:
    """A version to be written, which is current once the block ends; an error in it leaves the old one."""
    (path / "versions").mkdir(parents=True, exist_ok=True)
    with only_writer(path):
        version = max(versions_on_disk(path), default=0) + 1
        aside = path / "versions" / f".building-{version:06d}"
        # The lock is ours, so whatever lies aside was left by a build that died.
        for left_over in (path / "versions").glob(".building-*"):
            # Workers of a driver that died may still write into a folder of their own, whose name nobody uses again.
            shutil.rmtree(left_over, ignore_errors=left_over != aside)
        aside.mkdir()
        try:
            yield NewVersion(version, aside)
        except BaseException:
            shutil.rmtree(aside)
            raise
        sync_folder(aside)
        aside.rename(version_folder(path, version))
        sync_folder(path / "versions")
        switch_current(path, version)


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """The lock without which nothing of a store is written or removed; a `StoreError` when another has it."""
    with (path / ".build.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(
                f"another build of {path} is running",
                code="build_running",
                next_move="wait for it, then build again",
                retryable=True,
                path=str(path),
            ) from error
        yield


__all__ = ["NewVersion", "new_version", "only_writer"]
