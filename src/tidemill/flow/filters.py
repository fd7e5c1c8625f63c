"""Filters that reject: a bad row is data, kept with its reason, never dropped."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import coalesce, col, lit, when

from tidemill.core.errors import SpecError
from tidemill.flow.branches import REASON_COLUMN


def reject(rows: DataFrame, conditions: Mapping[str, Column]) -> DataFrame:
    """The rows with their reject reason in `_reject`: the first condition that is true, or NULL.

    A condition that evaluates to NULL does not reject. Called again further down the flow, it adds reasons for
    rows that are still accepted.

    Args:
        rows: Rows to judge, streaming or batch.
        conditions: Reason to condition, in order of precedence.
    """
    if not conditions:
        raise SpecError(
            "a filter needs at least one condition", code="empty_filter", next_move="add one or drop it"
        )
    judged: Column = lit(None).cast("string")
    for reason, condition in reversed(list(conditions.items())):
        judged = when(condition, lit(reason)).otherwise(judged)
    if REASON_COLUMN in rows.columns:
        judged = coalesce(col(REASON_COLUMN), judged)
    return rows.withColumn(REASON_COLUMN, judged)


__all__ = ["REASON_COLUMN", "reject"]
