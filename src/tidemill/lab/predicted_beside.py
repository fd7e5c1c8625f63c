"""The numbers of a figure as an HTML table, predicted beside measured with their difference."""

from html import escape
from typing import Any

Cells = dict[float, float]


def compare(figure: dict[str, Any]) -> str:
    """A table that opens on a click: a row an x, for each label its values by kind, and what a prediction is off by."""
    by_curve: dict[tuple[str, str], Cells] = {
        (curve["label"], curve["kind"]): dict(zip(curve["x"], curve["y"], strict=True))
        for curve in figure["curves"]
    }
    columns: list[tuple[str, Cells]] = []
    for (label, kind), points in by_curve.items():
        columns.append((f"{label}, {kind}", points))
        measured = by_curve.get((label, "measured"))
        if kind == "predicted" and measured:
            columns.append((f"{label}, off by", relative_errors(points, measured)))
    heads = "".join(f'<th class="number">{escape(name)}</th>' for name, _ in columns)
    rows = [
        f'<tr><td class="number">{number(x)}</td>{"".join(_cell(name, points.get(x)) for name, points in columns)}</tr>'
        for x in sorted({x for _, points in columns for x in points})
    ]
    return (
        f'<details><summary>Numbers of “{escape(figure["title"])}”</summary><div class="wide"><table><thead><tr>'
        f'<th class="number">{escape(figure["x_label"])}</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div></details>'
    )


def relative_errors(predicted: Cells, measured: Cells) -> Cells:
    """Where both are known, by how much the prediction is above the measurement.

    >>> relative_errors({1.0: 110.0, 2.0: 50.0}, {1.0: 100.0})
    {1.0: 0.1}
    """
    return {x: round(y / measured[x] - 1, 4) for x, y in predicted.items() if measured.get(x)}


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "<td></td>"
    text = f"{value:+.1%}" if name.endswith("off by") else number(value)
    return f'<td class="number">{text}</td>'


def number(value: float) -> str:
    """Four digits that mean something.

    >>> number(26123.4), number(0.93), number(1e-7)
    ('26,123', '0.93', '1e-07')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


__all__ = ["Cells", "compare", "number", "relative_errors"]
