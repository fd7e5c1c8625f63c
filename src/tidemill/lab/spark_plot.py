"""The Spark benchmark as a picture: one panel a size of batch, a bar a contender."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from tidemill.core.units import format_count
from tidemill.lab.plot_joins import BOUND_COLOUR, OUR_COLOUR

OTHER_COLOUR, PLAN_COLOUR = "#5b7db1", "#b8b8b8"


def plot_spark(results: list[dict[str, Any]], path: Path) -> None:
    """Write a PNG: rates on a log scale, ours red, other algorithms blue, Spark's own plans and lookups grey."""
    mpl.use("Agg")
    sizes = sorted({r["batch_rows"] for r in results}, reverse=True)
    most = max(sum(r["batch_rows"] == size for r in results) for size in sizes)
    size = (5.2 * len(sizes) + 1.5, 0.32 * most + 1.6)
    figure, panels = plt.subplots(1, len(sizes), figsize=size, squeeze=False, layout="constrained")
    for panel, batch_rows in zip(panels[0], sizes, strict=True):
        _draw(panel, [r for r in results if r["batch_rows"] == batch_rows and r["rows_per_s"]])
        panel.set_title(f"batches of {format_count(batch_rows)} rows", fontsize=11, loc="left")
    figure.supxlabel("stream rows a second", fontsize=10)
    rows = format_count(results[0]["master_rows"])
    figure.suptitle(f"A stream meets {rows} master rows in Spark", fontsize=13, x=0.01, ha="left")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw(panel: Axes, results: list[dict[str, Any]]) -> None:
    ordered = sorted(results, key=lambda r: r["rows_per_s"])
    names = [_label(r) for r in ordered]
    panel.barh(names, [r["rows_per_s"] for r in ordered], color=[_colour(r["contender"]) for r in ordered])
    for place, r in enumerate(ordered):
        panel.annotate(f" {format_count(r['rows_per_s'])}", (r["rows_per_s"], place), va="center", fontsize=8)
    panel.set_xscale("log")
    panel.margins(x=0.25)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.0f}"))
    panel.tick_params(axis="both", labelsize=8)
    panel.grid(visible=True, axis="x", which="major", alpha=0.35, lw=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _label(result: dict[str, Any]) -> str:
    share = result["memory_share"]
    return str(result["contender"]) + ("" if share is None else f", {share:.1%}")


def _colour(contender: str) -> str:
    if contender == "ceiling":
        return BOUND_COLOUR
    if contender.startswith("tide"):
        return OUR_COLOUR
    return PLAN_COLOUR if "-" in contender else OTHER_COLOUR


__all__ = ["plot_spark"]
