"""The Spark benchmark as tables: one a size of batch, contenders by rate."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from tidemill.core.units import format_bytes, format_count

COLUMNS = ("memory", "rows/s", "of the ceiling", "ms a batch", "batches", "memory, peak", "of", "same rows")


def spark_tables(results: list[dict[str, Any]]) -> Iterator[Table]:
    """Tables from large batches to small ones."""
    for batch_rows in sorted({r["batch_rows"] for r in results}, reverse=True):
        of_size = [r for r in results if r["batch_rows"] == batch_rows]
        ceiling = next((r["rows_per_s"] for r in of_size if r["contender"] == "ceiling"), None)
        rows = format_count(of_size[0]["master_rows"])
        title = f"batches of {format_count(batch_rows)} rows, {rows} master rows, {of_size[0]['cores']} cores"
        table = Table(title=title, title_justify="left")
        table.add_column("contender")
        for name in COLUMNS:
            table.add_column(name, justify="left" if name == "of" else "right")
        for result in sorted(of_size, key=lambda r: -(r["rows_per_s"] or 0)):
            table.add_row(result["contender"], *_values(result, ceiling))
        yield table


def remarks(results: list[dict[str, Any]]) -> Iterator[str]:
    """One line for each cell without a rate."""
    for r in results:
        if r["reason"]:
            share = "" if r["memory_share"] is None else f", memory {r['memory_share']:.1%}"
            yield f"{r['contender']}, {format_count(r['batch_rows'])} rows a batch{share}: {r['reason']}"


def _values(result: dict[str, Any], ceiling: float | None) -> list[str]:
    share = "-" if result["memory_share"] is None else f"{result['memory_share']:.1%}"
    rate = result["rows_per_s"]
    if rate is None:
        why = "failed" if result["failed"] else "not available" if result["missing"] else "too little memory"
        return [share, why, *["-"] * (len(COLUMNS) - 2)]
    return [
        share,
        format_count(rate),
        f"{rate / ceiling:.1%}" if ceiling else "-",
        "-" if result["batch_ms_p50"] is None else format_count(result["batch_ms_p50"]),
        "-" if result["batches"] is None else format_count(result["batches"]),
        format_bytes(result["memory_peak_bytes"]),
        result["memory_of"],
        f"yes, {format_count(result['verified_rows'])}" if result["same_rows"] else "NO",
    ]


__all__ = ["remarks", "spark_tables"]
