"""The figures of an experiment as pictures: measured points on full lines, predictions dashed, the paper's dotted."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

COLOURS = ("#1f5fa8", "#c1121f", "#2a7f3f", "#8a4fbf", "#c77700", "#00838f", "#6d4c41", "#555555")
LOOKS: dict[str, dict[str, Any]] = {
    "measured": {"ls": "-", "marker": "o", "ms": 4.5, "lw": 1.6},
    "predicted": {"ls": "--", "marker": "", "lw": 1.6, "alpha": 0.85},
    "paper": {"ls": ":", "marker": "x", "ms": 5, "lw": 1.4},
}


def plot_experiment(result: dict[str, Any], folder: Path) -> list[Path]:
    """Each figure as SVG and PNG under the experiment's id; the SVG files, in order."""
    mpl.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    return [_plot(figure, folder / f"{result['id']}-{n}") for n, figure in enumerate(result["figures"], 1)]


def _plot(figure: dict[str, Any], path: Path) -> Path:
    # The same ids on every run, so that a figure that did not change is the same file.
    with mpl.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "path", "font.size": 10}):
        picture, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
        _draw(axes, figure)
        picture.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        picture.savefig(path.with_suffix(".png"), dpi=130)
        plt.close(picture)
    return path.with_suffix(".svg")


def _draw(axes: Axes, figure: dict[str, Any]) -> None:
    labels = list(dict.fromkeys(curve["label"] for curve in figure["curves"]))
    for curve in figure["curves"]:
        colour = COLOURS[labels.index(curve["label"]) % len(COLOURS)]
        name = curve["label"] if curve["kind"] == "measured" else f"{curve['label']} ({curve['kind']})"
        axes.plot(curve["x"], curve["y"], color=colour, label=name, **LOOKS[curve["kind"]])
    axes.set_title(figure["title"], fontsize=11, loc="left")
    axes.set(xlabel=figure["x_label"], ylabel=figure["y_label"])
    if figure["log_x"]:
        axes.set_xscale("log")
    if figure["log_y"]:
        axes.set_yscale("log")
    else:
        _begin_at_zero(axes)
    for axis, is_log in ((axes.xaxis, figure["log_x"]), (axes.yaxis, figure["log_y"])):
        axis.set_major_formatter(FuncFormatter(_plain))
        if is_log:
            axis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, alpha=0.3, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if len(figure["curves"]) > 1:
        axes.legend(frameon=False, fontsize=8.5)


def _begin_at_zero(axes: Axes) -> None:
    """Where all is positive: a curve that is almost flat must look flat."""
    if axes.get_ylim()[0] > 0:
        axes.set_ylim(bottom=0)


def _plain(value: float, _place: object) -> str:
    """Numbers as people write them.

    >>> _plain(12500, None), _plain(0.5, None)
    ('12,500', '0.5')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


__all__ = ["plot_experiment"]
