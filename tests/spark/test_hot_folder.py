"""What workers share goes again: boards with their version, all else an hour after its last task."""

import os
import time
from pathlib import Path

from tidemill.spark.hot_folder import UNUSED_SECONDS, board_file, forget_unused, hot_file, mark_used

LONG_AGO = time.time() - UNUSED_SECONDS - 60


def made(file: Path, used_at: float | None = None) -> Path:
    file.write_bytes(b"rows")
    if used_at is not None:
        os.utime(file, (used_at, used_at))
    return file


def test_a_new_version_takes_the_place_of_the_board_before_it(tmp_path: Path) -> None:
    other_query = made(board_file(tmp_path, "another query", "version 1"))
    boards = [made(board_file(tmp_path, "query", f"version {number}")) for number in range(10)]
    assert [board.exists() for board in boards] == [False] * 9 + [True]
    assert board_file(tmp_path, "query", "version 9") == boards[-1]
    assert boards[-1].exists(), "its own is not removed"
    assert other_query.exists()


def test_what_had_no_task_for_an_hour_is_removed_but_for_its_locks(tmp_path: Path) -> None:
    left = made(hot_file(tmp_path, "ended"), LONG_AGO)
    locks = [made(left.with_suffix(suffix), LONG_AGO) for suffix in (".lock", ".adding")]
    board = made(board_file(tmp_path, "ended", "version 1"), LONG_AGO)
    busy = made(hot_file(tmp_path, "runs for days on one version"), LONG_AGO)
    young = made(hot_file(tmp_path, "young"))
    mark_used(busy, tmp_path / "gone")
    forget_unused(tmp_path)
    assert not left.exists()
    assert not board.exists()
    assert all(file.exists() for file in (busy, young, *locks))
