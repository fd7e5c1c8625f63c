"""What becomes of rows whose master row is not there yet: one fate a row, told by a column of the row itself.

Fates are Spark expressions over the row and the micro-batch's own time. Spark writes that time down with the batch and
uses it again when the batch is re-run, so a retry, a second action on the same batch and a re-run after a crash
give every row the fate it had.
"""

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidemill.core.errors import SpecError, unknown_choice
from tidemill.join.output import How
from tidemill.master import MasterData

if TYPE_CHECKING:
    from tidemill.spark.parking import Parking

Late = Literal["emit", "reject", "park"]
FATE_COLUMN = "_fate"
"""joined, unmatched (left with NULLs), defaulted, rejected, parked or shed."""
REASON_COLUMN = "_reason"
"""Why a row was rejected, parked, or left without a match; NULL for joined ones."""
PARKED_AT_COLUMN = "_parked_at"
"""When a row was parked first; NULL for rows that never were."""
SHED_AT_COLUMN = "_shed_at"
"""When a row was shed; NULL for rows that never were."""
MATCHED_COLUMN = "_matched"
"""Name for `matched_as` where the user asked for none; `late_output` takes it out again."""
LEAVING = ("joined", "unmatched", "defaulted")
LAST_FATES = {"emit": "unmatched", "reject": "rejected", "default": "defaulted"}
"""What a row is once its deadline has passed, by the parking's `then`."""


class Fates(NamedTuple):
    """The rows of a batch by what becomes of them."""

    joined: DataFrame
    """For the warehouse: with their master row, or left without one as `emit` or `default` ask for."""
    rejected: DataFrame
    """With `_reason`, and `_parked_at` where they have waited."""
    parked: DataFrame
    """With `_reason` and `_parked_at`; `Parking.write` finds them in the whole batch itself."""


def check_late(
    late: str,
    how: How,
    parking: "Parking | None",
    *,
    on: str | Sequence[str],
    master: MasterData | Sequence[object],
    is_streaming: bool,
) -> None:
    """Refuse what cannot be, before anything starts."""
    if not isinstance(master, MasterData) or not on:
        raise SpecError(
            f"late={late!r} with several masters or without a key",
            code="late_of_several",
            next_move="enrich with one master after the other, each with its own late=",
        )
    if late not in get_args(Late):
        raise unknown_choice("late", late, list(get_args(Late)))
    if late != "emit" and how != "left":
        raise SpecError(
            f"late={late!r} with how={how!r}",
            code="late_how",
            next_move='ask for it with how="left": other joins say themselves what becomes of unmatched rows',
            how=how,
        )
    if late == "park" and parking is None:
        raise SpecError(
            'late="park" without a place to park',
            code="no_parking",
            next_move="give parking=tm.Parking(path, master, on=…), and write each batch with parking.write",
        )
    if late != "park" and parking is not None:
        raise SpecError(
            f"a parking with late={late!r}", code="parking_unused", next_move='ask for late="park" with it'
        )
    if parking is not None:
        parking.refuse_other_join(on, master)
    if late == "park" and not is_streaming:
        # Each action on a batch DataFrame has a time of its own: near its deadline a row could have two fates.
        raise SpecError(
            'late="park" on rows that are no stream',
            code="park_batch",
            next_move="enrich the stream itself, not the batch inside foreachBatch",
        )


def late_output(
    enriched: DataFrame,
    *,
    on: str | Sequence[str],
    matched_as: str,
    late: Late,
    parking: "Parking | None" = None,
) -> DataFrame:
    """The rows with their fate in `_fate` and why in `_reason`; with late="emit" the rows as they are.

    Args:
        enriched: Output of a left join.
        on: Key columns of the stream.
        matched_as: Boolean column that is true where a master row matched.
        late: What becomes of the others.
        parking: For late="park": deadline, and what follows it. Adds `_parked_at` too.
    """
    if late == "emit":
        return _without_mark(enriched, matched_as)
    keys = [on] if isinstance(on, str) else list(on)
    is_null = reduce(or_, [F.col(name).isNull() for name in keys])
    named = ", ".join(keys)
    matched = F.col(matched_as)
    missing = F.when(is_null, f"NULL in key {named}").otherwise(f"no master row for key {named}")
    if late == "reject" or parking is None:
        fate = F.when(matched, "joined").otherwise("rejected")
        tagged = enriched.withColumns({FATE_COLUMN: fate, REASON_COLUMN: F.when(~matched, missing)})
        return _without_mark(tagged, matched_as)

    parking.refuse_unknown_defaults(enriched.columns)
    now = F.current_timestamp()
    since = F.col(PARKED_AT_COLUMN) if PARKED_AT_COLUMN in enriched.columns else F.lit(None).cast("timestamp")
    waited_ms = F.unix_millis(now) - F.unix_millis(F.coalesce(since, now))
    # A NULL can never meet a master row, so it waits for none.
    hopeless = is_null | (waited_ms >= F.lit(parking.deadline_ms))
    last = LAST_FATES[parking.then]
    fate = F.when(matched, "joined").when(hopeless, last).otherwise("parked")
    over = F.when(is_null, missing).otherwise(f"no master row for key {named} within {parking.deadline}")
    tagged = enriched.withColumns(
        {
            FATE_COLUMN: fate,
            REASON_COLUMN: F.when(~matched, F.when(hopeless, over).otherwise(missing)),
            PARKED_AT_COLUMN: F.when(fate == "parked", F.coalesce(since, now)).otherwise(since),
        }
    )
    kinds = {field.name: field.dataType for field in enriched.schema}
    defaulted = F.col(FATE_COLUMN) == "defaulted"
    filled = {
        name: F.when(defaulted, F.lit(value).cast(kinds[name])).otherwise(F.col(name))
        for name, value in parking.default.items()
    }
    return _without_mark(tagged.withColumns(filled) if filled else tagged, matched_as)


def split_fates(batch: DataFrame) -> Fates:
    """The rows of a batch apart: joined without our columns, rejected and parked with what is known of them.

    Rows that were shed are in none of them: `Shed.write` finds them in the whole batch itself.
    Each part is a query over the whole batch: persist it first.
    """
    if FATE_COLUMN not in batch.columns:
        raise SpecError(
            f"the batch has no column {FATE_COLUMN!r}",
            code="no_fates",
            next_move='enrich it with late="reject", late="park" or shed=',
            columns=batch.columns,
        )
    fate = F.col(FATE_COLUMN)
    ours = (FATE_COLUMN, REASON_COLUMN, PARKED_AT_COLUMN, SHED_AT_COLUMN)
    joined = batch.where(fate.isin(*LEAVING)).drop(*ours)
    return Fates(
        joined,
        batch.where(fate == "rejected").drop(FATE_COLUMN),
        batch.where(fate == "parked").drop(FATE_COLUMN),
    )


def _without_mark(rows: DataFrame, matched_as: str) -> DataFrame:
    return rows.drop(matched_as) if matched_as == MATCHED_COLUMN else rows


__all__ = [
    "FATE_COLUMN",
    "LAST_FATES",
    "MATCHED_COLUMN",
    "PARKED_AT_COLUMN",
    "REASON_COLUMN",
    "SHED_AT_COLUMN",
    "Fates",
    "Late",
    "check_late",
    "late_output",
    "split_fates",
]
