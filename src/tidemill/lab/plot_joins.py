"""The join benchmark as a picture: rate over memory, one panel a skew."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt


def plot_joins(results: list[dict[str, Any]], path: Path) -> None:
    """Write a PNG; our joins as full lines, peers dashed, the bound dotted."""
    mpl.use("Agg")
    skews = sorted({r["zipf"] for r in results})
    names = list(dict.fromkeys(r["contender"] for r in results))
    figure, panels = plt.subplots(1, len(skews), figsize=(5 * len(skews) + 2, 5), sharey=True, squeeze=False)
    for panel, zipf in zip(panels[0], skews, strict=True):
        for number, name in enumerate(names):
            cells = sorted(
                (r["memory_share"], r["rows_per_s"])
                for r in results
                if (r["contender"], r["zipf"]) == (name, zipf)
            )
            style = "--" if name.startswith("peer-") else "-"
            panel.plot(*zip(*cells, strict=True), style, marker="o", color=f"C{number % 10}", label=name)
        bound = sorted({(r["memory_share"], r["bound_rows_per_s"]) for r in results if r["zipf"] == zipf})
        panel.plot(*zip(*bound, strict=True), ":", marker="_", color="black", label="bound")
        panel.set(
            title=f"Zipf {zipf:g}", xlabel="memory as a share of the master data", xscale="log", yscale="log"
        )
        panel.grid(visible=True, alpha=0.3)
    panels[0][0].set_ylabel("stream rows a second")
    panels[0][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


__all__ = ["plot_joins"]
