import os
from pathlib import Path

import psutil
import pytest

from tidemill.lab.join_data import FORMS, JoinData

ROWS = 20_000


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> JoinData:
    """Master data in all forms, small; built once."""
    made = JoinData(tmp_path_factory.mktemp("bench"), ROWS)
    made.build(list(FORMS), lambda _text, _share: None)
    return made


@pytest.fixture
def on_disk(data: JoinData) -> JoinData:
    """The same on a real disk, whose reads the kernel counts, with everything written."""
    mounts = sorted(psutil.disk_partitions(all=True), key=lambda mount: len(mount.mountpoint))
    kinds = [mount.fstype for mount in mounts if data.folder.resolve().is_relative_to(mount.mountpoint)]
    if kinds and kinds[-1] in ("tmpfs", "ramfs"):
        pytest.skip("temporary files are kept in memory here")
    for file in data.folder.rglob("*"):
        if file.is_file():
            sync(file)
    return data


def sync(file: Path) -> None:
    """Pages that are not written yet cannot be dropped."""
    handle = os.open(file, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
