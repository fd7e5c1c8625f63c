"""Rows of an answer as text: a table for people, CSV and JSON for programs."""

import csv
import io
import json
import math
import sys
from typing import TYPE_CHECKING, Any, Literal, assert_never

from tidemill.core.errors import SpecError

if TYPE_CHECKING:
    import pyarrow as pa

Form = Literal["table", "csv", "json"]

# A value must not move the cursor or recolour the terminal that shows it.
_VISIBLE = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]} | {
    9: "\\t",
    10: "\\n",
    13: "\\r",
}


def render(table: "pa.Table", form: Form) -> str:
    """The rows as text that ends with a line end; nothing for an answer without columns."""
    names = table.column_names
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    if form == "csv":
        return _csv(names, rows)
    if form == "json":
        return _json(names, rows)
    if form == "table":
        cells = [[_cell(value) for value in row] for row in rows]
        numeric = [_is_number(field.type) for field in table.schema]
        lay_out = _rich_table if sys.stdout.isatty() else _plain_table
        return lay_out([_cell(name) for name in names], cells, numeric) if names else ""
    assert_never(form)


def _csv(names: list[str], rows: list[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()


def _json(names: list[str], rows: list[tuple[Any, ...]]) -> str:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SpecError(
            f"a JSON object cannot hold two columns called {twice[0]!r}",
            code="column_twice",
            next_move="name them apart with AS, or use --csv",
            columns=twice,
        )
    return json.dumps([dict(zip(names, map(_json_value, row), strict=True)) for row in rows]) + "\n"


def _json_value(value: Any) -> Any:
    """What JSON can say: exact numbers and moments as text, no NaN."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return value.hex()
        case dict():
            return {str(name): _json_value(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_json_value(inner) for inner in value]
        case _:
            return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _cell(value: Any) -> str:
    return "NULL" if value is None else str(value).translate(_VISIBLE)


def _is_number(kind: "pa.DataType") -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind))


def _plain_table(names: list[str], rows: list[list[str]], numeric: list[bool]) -> str:
    """Columns as wide as their widest value: nothing is cut, so that a file or a pipe gets all of it."""
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    lines = [names, ["-" * width for width in widths], *rows]
    return "".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )


def _rich_table(names: list[str], rows: list[list[str]], numeric: list[bool]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name, right in zip(names, numeric, strict=True):
        table.add_column(Text(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console()
    with console.capture() as captured:
        console.print(table)
    return captured.get()


__all__ = ["Form", "render"]
