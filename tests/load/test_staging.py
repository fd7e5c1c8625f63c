"""Staged files across restarts: whole ones come back, torn and orphaned ones go."""

from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.core.errors import LoadError
from tidemill.load.blocks import digest_of
from tidemill.load.client import BlockRef, Ticket
from tidemill.load.messages import BlockName
from tidemill.load.staging import StagingArea

from .harness import sales

TICKET = Ticket("shop", "q1", 3)


def stage(area: StagingArea, number: int, ticket: Ticket = TICKET, batch_id: int = 0) -> BlockRef:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sales(0, 1).schema) as stream:
        stream.write_table(sales(number, 5))
    body = sink.getvalue()
    area.put(ticket, batch_id, BlockName("sales", 0, 0, number), body, digest_of(body))
    return BlockRef("sales", 0, 0, number, digest_of(body), 5)


def test_a_torn_file_is_missing_after_a_restart_and_can_be_sent_again(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, 10**6)
    refs = [stage(area, 0), stage(area, 1)]
    torn = next(tmp_path.glob("**/0-0-1.*.arrow"))
    torn.write_bytes(torn.read_bytes()[:100])
    area = StagingArea(tmp_path, 10**6)
    assert area.load(TICKET, 0, refs[:1])["sales"].num_rows == 5
    with pytest.raises(LoadError) as caught:
        area.load(TICKET, 0, refs)
    assert (caught.value.code, caught.value.block) == ("missing_block", "0-0-1")
    stage(area, 1)
    assert area.load(TICKET, 0, refs)["sales"].num_rows == 10


def test_a_file_that_changes_under_us_is_not_loaded(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, 10**6)
    ref = stage(area, 0)
    path = next(tmp_path.glob("**/*.arrow"))
    path.write_bytes(path.read_bytes().replace(b"city 0", b"city 9"))
    with pytest.raises(LoadError, match="is not staged"):
        area.load(TICKET, 0, [ref])


def test_forgetting_takes_older_fences_and_done_batches_only(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, 10**6)
    stage(area, 0, Ticket("shop", "q1", 2), 9)
    stage(area, 0, TICKET, 4)
    kept = stage(area, 0, TICKET, 5)
    stage(area, 0, Ticket("mall", "q1", 1), 0)
    area.forget_finished("shop", fence=3, last_batch_id=4)
    assert (area.staged_blocks("shop"), area.staged_blocks("mall")) == (1, 1)
    assert area.load(TICKET, 5, [kept])["sales"].num_rows == 5
    area.forget_unknown({"shop"})
    assert area.staged_blocks("mall") == 0
    assert len(list(tmp_path.glob("**/*.arrow"))) == 1
