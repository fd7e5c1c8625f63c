"""The joins by name."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidemill.core.errors import SpecError, unknown_choice
from tidemill.core.memory import MemoryBudget
from tidemill.join.adaptive_mesh import AdaptiveMeshJoin
from tidemill.join.balanced import BalancedJoin
from tidemill.join.cache import CacheJoin
from tidemill.join.conditions import Condition, plan_without_key, refuse_conditions
from tidemill.join.hybrid import HybridJoin
from tidemill.join.inl import InlJoin
from tidemill.join.mesh import MeshJoin
from tidemill.join.moij import MoijJoin
from tidemill.join.ordered import OrderedJoin
from tidemill.join.output import Columns, How, OutputPlan
from tidemill.join.protocol import SemiStreamJoin
from tidemill.join.reduced_mesh import ReducedMeshJoin
from tidemill.join.reference import ReferenceJoin
from tidemill.join.ssij import SsijJoin
from tidemill.join.tide import TideJoin
from tidemill.join.x_hybrid import XHybridJoin
from tidemill.master.protocol import Master

JOINS: dict[str, type[SemiStreamJoin]] = {
    join.name: join
    for join in (
        AdaptiveMeshJoin,
        BalancedJoin,
        CacheJoin,
        HybridJoin,
        InlJoin,
        MeshJoin,
        MoijJoin,
        ReducedMeshJoin,
        ReferenceJoin,
        SsijJoin,
        TideJoin,
        XHybridJoin,
    )
}


def make_join(
    name: str,
    master: Master,
    stream_schema: pa.Schema,
    *,
    stream_key: str | Sequence[str] | None = None,
    budget: MemoryBudget,
    how: How = "inner",
    columns: Columns | None = None,
    matched_as: str | None = None,
    ordered: bool = False,
    condition: Condition | None = None,
    **options: Any,
) -> SemiStreamJoin:
    """The join of that name, ready for batches of `stream_schema`.

    Args:
        name: A key of `JOINS`.
        master: What the stream is joined with.
        stream_schema: Of the batches that will be offered.
        stream_key: Column of the stream, or as many as the master key has; rows with NULL match
            nothing. Left out when there is a condition.
        budget: Everything that the join holds is reserved there.
        how: inner, left, semi or anti.
        columns: Master columns, or a mapping to their names in the output; all but the key if None.
        matched_as: Name of a boolean column for left joins: whether a master row matched.
        ordered: Output in stream order, all matches of a stream row together (`join/ordered.py`).
        condition: What takes the place of equal keys, such as `Between` (`join/conditions.py`); for the
            joins that scan.
        options: Passed to the join, such as `sizes` and `auto_switch` of `cache`.
    """
    if name not in JOINS:
        raise unknown_choice("join", name, sorted(JOINS))
    asked: Any = {"master_key": master.key, "how": how, "columns": columns, "matched_as": matched_as}
    if condition is not None:
        _check_condition(name, condition, stream_schema, master)
        options["condition"] = condition
    elif stream_key is None:
        raise SpecError(
            "neither a stream key nor a condition was given",
            code="no_stream_key",
            next_move="give stream_key, or condition for a join that takes one",
        )

    def plan_for(schema: pa.Schema) -> OutputPlan:
        if stream_key is None or condition is not None:
            return plan_without_key(schema, master.schema, **asked)
        return OutputPlan.of(schema, master.schema, stream_key=stream_key, **asked)

    def join_for(plan: OutputPlan) -> SemiStreamJoin:
        # The protocol leaves constructors free beyond these three: algorithms differ in their options.
        kind: Any = JOINS[name]
        join: SemiStreamJoin = kind(master, plan, budget, **options)
        return join

    if ordered:
        return OrderedJoin(join_for, plan_for, stream_schema, budget, sizes_given="sizes" in options)
    return join_for(plan_for(stream_schema))


def _check_condition(name: str, condition: Condition, stream_schema: pa.Schema, master: Master) -> None:
    who_can = sorted(n for n, kind in JOINS.items() if getattr(kind, "takes_conditions", False))
    if name not in who_can:
        raise refuse_conditions(name, who_can)
    condition.check(stream_schema, master.schema)


__all__ = ["JOINS", "make_join"]
