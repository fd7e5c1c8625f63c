"""The joins by name."""

from typing import Any

import pyarrow as pa

from tidemill.core.errors import unknown_choice
from tidemill.core.memory import MemoryBudget
from tidemill.join.cache import CacheJoin
from tidemill.join.output import Columns, How, OutputPlan
from tidemill.join.protocol import SemiStreamJoin
from tidemill.join.reference import ReferenceJoin
from tidemill.master import MasterData

JOINS: dict[str, type[SemiStreamJoin]] = {join.name: join for join in (CacheJoin, ReferenceJoin)}


def make_join(
    name: str,
    master: MasterData,
    stream_schema: pa.Schema,
    *,
    stream_key: str,
    budget: MemoryBudget,
    how: How = "inner",
    columns: Columns | None = None,
    matched_as: str | None = None,
    **options: Any,
) -> SemiStreamJoin:
    """The join of that name, ready for batches of `stream_schema`.

    Args:
        name: A key of `JOINS`.
        master: What the stream is joined with.
        stream_schema: Of the batches that will be offered.
        stream_key: Integer column of the stream; rows with NULL match nothing.
        budget: Everything that the join holds is reserved there.
        how: inner, left, semi or anti.
        columns: Master columns, or a mapping to their names in the output; all but the key if None.
        matched_as: Name of a boolean column for left joins: whether a master row matched.
        options: Passed to the join, such as `sizes` and `auto_switch` of `cache`.
    """
    if name not in JOINS:
        raise unknown_choice("join", name, sorted(JOINS))
    plan = OutputPlan.of(
        stream_schema,
        master.schema,
        stream_key=stream_key,
        master_key=master.key,
        how=how,
        columns=columns,
        matched_as=matched_as,
    )
    # The protocol leaves constructors free beyond these three: algorithms differ in their options.
    kind: Any = JOINS[name]
    join: SemiStreamJoin = kind(master, plan, budget, **options)
    return join


__all__ = ["JOINS", "make_join"]
