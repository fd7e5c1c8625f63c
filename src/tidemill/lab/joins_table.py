"""The join benchmark as tables: one a skew and memory share, contenders by rate."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from tidemill.core.units import format_bytes, format_count

COLUMNS = ("rows/s", "of the bound", "of its own", "read a row", "memory, peak of budget", "same rows")


def joins_tables(results: list[dict[str, Any]]) -> Iterator[Table]:
    """Tables in order of skew, then of memory."""
    for zipf, share in sorted({(r["zipf"], r["memory_share"]) for r in results}):
        cell = [r for r in results if (r["zipf"], r["memory_share"]) == (zipf, share)]
        title = f"Zipf {zipf:g}, memory {share:.1%} of the master data; {_bound(cell[0])}"
        table = Table(title=title, title_justify="left")
        table.add_column("contender")
        for name in COLUMNS:
            table.add_column(name, justify="right")
        for result in sorted(cell, key=lambda r: -(r["rows_per_s"] or 0)):
            table.add_row(result["contender"], *_values(result))
        yield table


def remarks(results: list[dict[str, Any]]) -> Iterator[str]:
    """One line for each cell without a rate."""
    for r in results:
        if r["reason"]:
            yield f"{r['contender']}, Zipf {r['zipf']:g}, memory {r['memory_share']:.1%}: {r['reason']}"


def _bound(result: dict[str, Any]) -> str:
    if result["bound_rows_per_s"] is None:
        return "no bound"
    bound, assembly, cached = (
        format_count(result[f"{name}_rows_per_s"]) for name in ("bound", "assembly", "cached_assembly")
    )
    return f"bound {bound} rows/s\nassembling alone {assembly} rows/s; {cached} over the same few rows"


def _values(result: dict[str, Any]) -> list[str]:
    rate = result["rows_per_s"]
    if rate is None:
        return ["failed" if result["failed"] else "too little memory", *["-"] * (len(COLUMNS) - 1)]
    bounds = result["bound_rows_per_s"], result["own_bound_rows_per_s"]
    return [
        format_count(rate),
        *(f"{rate / bound:.1%}" if bound else "-" for bound in bounds),
        format_bytes(result["bytes_read"] / result["stream_rows"]),
        f"{format_bytes(result['memory_peak_bytes'])} of {format_bytes(result['memory_budget_bytes'])}",
        f"yes, {format_count(result['verified_rows'])}" if result["same_rows"] else "NO",
    ]


__all__ = ["joins_tables", "remarks"]
