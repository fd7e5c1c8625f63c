"""The join benchmark as a picture: rate over memory, one panel a skew."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

OURS = "tide"
OUR_COLOUR, BOUND_COLOUR = "#c1121f", "#222222"
MARKERS = "osD^vP*X"


def plot_joins(results: list[dict[str, Any]], path: Path) -> None:
    """Write a PNG; the papers' joins as full lines, peers thin and dotted, ours thick, the bound dashed."""
    mpl.use("Agg")
    skews = sorted({r["zipf"] for r in results})
    styles = _styles(list(dict.fromkeys(r["contender"] for r in results)))
    size = (4.2 * len(skews) + 2.4, 5.2)
    figure, panels = plt.subplots(
        1, len(skews), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for panel, zipf in zip(panels[0], skews, strict=True):
        _draw(panel, [r for r in results if r["zipf"] == zipf], styles)
        panel.set_title(f"Zipf {zipf:g}", fontsize=11, loc="left")
    panels[0][0].set_ylabel("stream rows a second")
    figure.supxlabel("memory as a share of the master data", fontsize=10)
    rows = results[0]["master_rows"]
    figure.suptitle(f"Semi-stream joins, {rows:,} master rows", fontsize=13, x=0.01, ha="left")
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _styles(names: list[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and line of each contender, the same in all panels."""
    colours = plt.get_cmap("tab20").colors  # type: ignore[attr-defined]
    styles: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(names):
        look = {"color": colours[number % 20], "marker": MARKERS[number % len(MARKERS)], "ms": 4}
        line = {"ls": ":", "lw": 1.2, "mfc": "white"} if name.startswith("peer-") else {"ls": "-", "lw": 1.4}
        styles[name] = {**look, **line}
    if OURS in styles:
        styles[OURS] = {"color": OUR_COLOUR, "marker": "o", "ms": 6, "ls": "-", "lw": 3, "zorder": 5}
    return styles


def _draw(panel: Axes, results: list[dict[str, Any]], styles: dict[str, dict[str, Any]]) -> None:
    for name, style in styles.items():
        cells = sorted(
            (r["memory_share"], r["rows_per_s"])
            for r in results
            if r["contender"] == name and r["rows_per_s"]
        )
        panel.plot([share for share, _ in cells], [rate for _, rate in cells], label=name, **style)
    bound = sorted({(r["memory_share"], r["bound_rows_per_s"]) for r in results if r["bound_rows_per_s"]})
    shares = sorted({r["memory_share"] for r in results})
    at, rates = [share for share, _ in bound], [rate for _, rate in bound]
    panel.plot(at, rates, "--", marker="_", color=BOUND_COLOUR, label="bound", lw=1.5)
    panel.set(xscale="log", yscale="log")
    panel.set_xticks(shares, [f"{share:.3g}" for share in shares])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.0f}"))
    panel.grid(visible=True, which="major", alpha=0.35, lw=0.6)
    panel.grid(visible=True, which="minor", axis="y", alpha=0.12, lw=0.5)
    panel.spines[["top", "right"]].set_visible(False)


__all__ = ["plot_joins"]
