"""One driver a checkpoint; a checkpoint of somebody else is left alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.core.errors import SpecError
from tidemill.load.client import LoaderClient
from tidemill.spark.checkpoint import open_pipeline

HOLD = """
import fcntl, sys
handle = open(sys.argv[1], "w")
fcntl.flock(handle, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


NOBODY = LoaderClient("http://127.0.0.1:9", "t" * 32, deadline_seconds=0.1)
"""Nothing listens there: whoever asks it fails otherwise than with a `SpecError`."""


def test_a_second_driver_on_a_checkpoint_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "tidemill.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(SpecError, match="another driver runs"):
            open_pipeline(NOBODY, "shop", tmp_path, [])
        other.communicate()


def test_a_checkpoint_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    with pytest.raises(SpecError, match="not made by a Tidemill pipeline"):
        open_pipeline(NOBODY, "shop", tmp_path, [])
