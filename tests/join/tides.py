"""TIDE joins and stores for tests of them."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.join.streams import join_on

from tidemill.core.errors import BudgetError
from tidemill.join.protocol import StepReport
from tidemill.join.tide import TideJoin
from tidemill.master import MasterData

MOST_STEPS = 20_000


def tide(master: MasterData, memory_bytes: int = 1_000_000, **options: Any) -> TideJoin:
    join = join_on("tide", master, memory_bytes, **{"how": "left", **options})
    assert isinstance(join, TideJoin)
    return join


def finished(reports: Iterable[StepReport], most_steps: int = MOST_STEPS) -> list[StepReport]:
    """All reports, of which there must be an end."""
    seen = list(islice(reports, most_steps))
    assert len(seen) < most_steps, "the join goes on for ever"
    return seen


def repeated(folder: Path, rows_of_key: dict[int, int], page_bytes: int = 4096) -> MasterData:
    keys = np.repeat(list(rows_of_key), list(rows_of_key.values()))
    table = pa.table(
        {"id": keys, "n": np.arange(len(keys)), "name": [f"row {n} " + "x" * 70 for n in range(len(keys))]}
    )
    return MasterData.build(table, key="id", path=folder, page_bytes=page_bytes)


def least_bytes(store: MasterData, **options: Any) -> int:
    with pytest.raises(BudgetError, match="too little") as refusal:
        tide(store, 1, **options)
    return int(refusal.value.least_bytes)
