"""Columns that travel beside the user's own, by name."""

ENTRY_COLUMN = "_entry"
"""Log entry that a row came in: `foreachBatch` gets no offsets, so the position travels with the rows."""
COMMITTED_COLUMN = "_committed_at"
"""When the source committed a row, as capture noted it; NULL where it cannot be known."""
METRICS_COLUMN = "_tidemill_metrics"
"""JSON of an operator about its task, in a row of its own that `observe` takes out: it is retried and lost with the rows."""

__all__ = ["COMMITTED_COLUMN", "ENTRY_COLUMN", "METRICS_COLUMN"]
