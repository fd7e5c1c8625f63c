"""A stream of change rows keeps master data up to date: what `foreachBatch` calls."""

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from tidemill.core.errors import SpecError
from tidemill.master.feeds import Fed, apply_once
from tidemill.spark.failpoint import die_if_told


def apply_changes(
    master_path: str | Path,
    *,
    operation: str = "_op",
    order: str | None = None,
    feed: str | None = None,
    on_batch: Callable[[int, Fed], None] | None = None,
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that applies change rows to a master store, each batch exactly once.

    A batch becomes one version of the store, whose manifest names the query and the batch: a batch that is run again is
    skipped. Queries that enrich with the store go over to the version by their own policy. The change rows of a batch
    are held in the driver's memory; `maxFilesPerTrigger`, `maxOffsetsPerTrigger` and the like bound them.

    Args:
        master_path: Folder of the store.
        operation: Name of the column with the operation: insert, update, delete, or update_before and update_after.
        order: Column that tells which of several changes of a key in a batch is the last. Needed unless a key comes
            once, since Spark keeps no order.
        feed: Name of the feed; the query's id, which lives in its checkpoint, when left out. Give one on Spark
            Connect, and keep it as long as the checkpoint: batch numbers of another checkpoint would be taken for
            repeats.
        on_batch: Told the number of each batch and what became of it.
    """
    path = Path(master_path).resolve()

    def apply_batch(batch: DataFrame, batch_id: int) -> None:
        name = feed or _query_of(batch)
        fed = apply_once(path, batch.toArrow(), feed=name, at=batch_id, operation=operation, order=order)
        die_if_told("after_apply")
        if on_batch is not None:
            on_batch(batch_id, fed)

    return apply_batch


def _query_of(batch: DataFrame) -> str:
    try:
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    except Exception:  # noqa: BLE001 -- Spark Connect has no context, and says so by errors of several kinds
        query_id = None
    if not query_id:
        raise SpecError(
            "this batch does not tell the id of its query",
            code="no_query_id",
            next_move="call it from foreachBatch; on Spark Connect name the feed with feed=…",
        )
    return f"spark:{query_id}"


__all__ = ["apply_changes"]
