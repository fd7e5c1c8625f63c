"""Processes that share what they read: each region once a host, the same rows, whatever becomes of the others."""

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import numpy as np
import pyarrow as pa
import pytest
from tests.join.streams import batch, build_uneven, join_on, totals

from tidemill.core.memory import MemoryBudget
from tidemill.join.drive import drive
from tidemill.join.parts.keeping_kernels import FOUND, ROWS, TORN, USED_BYTES, keep_rows
from tidemill.join.protocol import StepReport
from tidemill.join.tide import TideJoin
from tidemill.master import MasterData
from tidemill.master.board import Board
from tidemill.master.page_kernels import DENSE, SHORT

KEYS = 8_000
MEMORY_BYTES = 8_000_000


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    return build_uneven(tmp_path_factory.mktemp("m"), KEYS)


@pytest.fixture
def stream() -> list[pa.RecordBatch]:
    return [batch(np.random.default_rng(2).integers(0, 2 * KEYS, 5_000))]


@pytest.fixture
def expected(master: MasterData, stream: list[pa.RecordBatch]) -> Counter[str]:
    return rows_in(list(drive(join_on("inl", master, MEMORY_BYTES, how="left"), stream)))


def board_at(path: Path, master: MasterData, *, regions_kept: int = 64, seats: int = 2) -> Board:
    region_bytes = 24 * master.longest_page_bytes
    size_bytes = 2 * seats * regions_kept * region_bytes
    return Board(path, regions=master.pages, seats=seats, size_bytes=size_bytes, region_bytes=region_bytes)


def tide(master: MasterData, board: Board) -> TideJoin:
    plan = join_on("tide", master, MEMORY_BYTES, how="left").plan
    return TideJoin(master, plan, MemoryBudget(MEMORY_BYTES), board=board)


def rows_in(reports: list[StepReport]) -> Counter[str]:
    return Counter(str(row) for report in reports for out in report.outputs for row in out.to_pylist())


def run(master: MasterData, board: Board, stream: list[pa.RecordBatch]) -> tuple[Counter[str], int]:
    """Rows, and pages read for them."""
    reports = list(drive(tide(master, board), stream))
    return rows_in(reports), totals(reports)["pages_read"]


def test_what_one_has_posted_another_does_not_read(
    master: MasterData, stream: list[pa.RecordBatch], expected: Counter[str], tmp_path: Path
):
    first, second = (board_at(tmp_path / "board", master) for _ in range(2))
    with first.taken_seat(), second.taken_seat():
        rows, pages = run(master, first, stream)
        assert rows == expected
        assert pages > master.pages // 2
        rows, pages = run(master, second, stream)
        assert rows == expected
        assert pages == 0


def test_what_was_overwritten_is_read_again(
    master: MasterData, stream: list[pa.RecordBatch], expected: Counter[str], tmp_path: Path
):
    first, second = (board_at(tmp_path / "board", master) for _ in range(2))
    with first.taken_seat(), second.taken_seat():
        run(master, first, stream)
        chance = np.random.default_rng(3)
        overwritten = first._tickets[:] > 0
        assert overwritten.any()
        first._content[:] = chance.integers(0, 2**63, len(first._content), dtype=np.uint64)
        first._tickets[:] += overwritten
        rows, pages = run(master, second, stream)
    assert rows == expected
    assert pages > master.pages // 2


def test_a_claim_that_leads_to_nothing_is_waited_for_but_not_for_ever(
    master: MasterData, stream: list[pa.RecordBatch], expected: Counter[str], tmp_path: Path
):
    board = board_at(tmp_path / "board", master)
    board._claimed[:] = time.monotonic_ns()  # and then killed
    with board.taken_seat():
        rows, pages = run(master, board, stream)
    assert rows == expected
    assert pages > master.pages // 2


def test_whoever_finds_no_seat_reads_alone(
    master: MasterData, stream: list[pa.RecordBatch], expected: Counter[str], tmp_path: Path
):
    boards = [board_at(tmp_path / "board", master) for _ in range(3)]
    with ExitStack() as seats:
        for board in boards:
            seats.enter_context(board.taken_seat())
        assert [board.seat for board in boards] == [0, 1, None]
        rows, pages = run(master, boards[2], stream)
        assert rows == expected
        assert pages > master.pages // 2
        assert not boards[0]._posted.any()
    with boards[2].taken_seat():
        assert boards[2].seat == 0, "seats are free again"


def test_two_at_a_time_share_the_work(
    master: MasterData, stream: list[pa.RecordBatch], expected: Counter[str], tmp_path: Path
):
    """With few slots, so that they are written over and over while the other looks at them."""
    found: list[tuple[Counter[str], int]] = []

    def work() -> None:
        own = MasterData.open(master.path, reads_in_flight=2)
        board = board_at(tmp_path / "board", master, regions_kept=3)
        with board.taken_seat():
            found.extend(run(own, board, stream) for _ in range(5))

    threads = [Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [rows == expected for rows, _ in found] == [True] * 10


@pytest.mark.parametrize("kind", [0, SHORT])
@pytest.mark.parametrize("last_open", [20, -1])
def test_nothing_in_a_region_is_believed_beyond_its_bounds(last_open: int, kind: int):
    chance = np.random.default_rng(4)
    begin = np.array([0, 64, 128, 192, 256])
    rows, rows_at = np.zeros(4096, dtype=np.uint8), np.zeros(64, dtype=np.int64)
    scratch = np.zeros(600, dtype=np.int64)
    outcomes = Counter[int]()
    for _ in range(3_000):
        words = chance.integers(0, 2**63, 256, dtype=np.uint64)
        told = chance.integers(0, 12, 4)  # heads with few rows, or else all are refused at once
        if last_open < 0:  # of dense pages, one in sixteen of which tells another length
            told = chance.integers(0, 19, 4)
            told |= (16 + 32 * told + 8 * (chance.random(4) < 1 / 16) + DENSE) << 32
        told |= kind << 32
        told ^= (SHORT << 32) * (chance.random(4) < 1 / 64)
        words[1::64] = told
        words[2::64] = chance.integers(0, 600, 4) | chance.integers(0, 600, 4) << 32
        for code in (int(words[chance.integers(256)].astype(np.int64)), 5):
            kept, found = np.zeros(2, dtype=np.int64), np.zeros((2, 1), dtype=np.int64)
            scratch[:] = 0
            outcomes[keep_rows(
                words, begin, 4, last_open, 32, np.array([code]), rows, rows_at, kept, *found, scratch[:16],
                scratch[16:21], scratch[21:25], scratch[25:],
            )] += 1  # fmt: skip
            assert 0 <= kept[USED_BYTES] <= len(rows)
            assert 0 <= kept[ROWS] <= len(rows_at)
    assert outcomes[TORN] > 100
    assert outcomes[FOUND] > 100
