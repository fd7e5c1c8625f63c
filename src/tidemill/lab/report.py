"""`tidemill lab report`: one HTML page, with nothing outside of it, from what `lab run --plots` left."""

import json
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from tidemill.core.errors import StoreError
from tidemill.core.files import write_atomically
from tidemill.core.units import format_bytes
from tidemill.lab.plot_experiment import plot_experiment
from tidemill.lab.predicted_beside import compare

CLASSES = {"holds": "holds", "does not hold here": "not", "not measured": "unknown", "failed": "failed"}


def write_report(folder: Path) -> Path:
    """The page, `index.html` beside the figures, which are drawn anew."""
    machine, results = _read(folder)
    page = folder / "index.html"
    write_atomically(page, _page(machine, results, folder).encode())
    return page


def _read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Machine and results by id; of one that is there twice the later."""
    machine: dict[str, Any] = {}
    by_id: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        told = json.loads(path.read_text())
        if not isinstance(told, dict) or told.get("name") != "lab":
            continue
        machine = told["machine"]
        for result in told["results"]:
            other = by_id.get(result["id"])
            if other is None or other["finished_at"] <= result["finished_at"]:
                by_id[result["id"]] = result
    if not by_id:
        raise StoreError(
            f"there are no results of experiments in {folder}",
            code="no_results",
            next_move=f"run tidemill lab run all --quick --plots {folder} first",
        )
    return machine, [by_id[name] for name in sorted(by_id)]


def _page(machine: dict[str, Any], results: list[dict[str, Any]], folder: Path) -> str:
    counts = {verdict: sum(r["verdict"] == verdict for r in results) for verdict in CLASSES}
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    where = f"{machine['cores']} cores, {format_bytes(machine['memory_bytes'])} memory, {machine['system']}, Python {machine['python']}"
    style = files("tidemill.lab").joinpath("report.css").read_text()
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Tidemill lab: {summary}</title><style>{style}</style></head><body>",
            f"<h1>The papers' claims, put to the test</h1><p>{len(results)} experiments: {summary}.</p>",
            f'<p class="soft">{escape(where)}. Full lines are measured, dashed ones predicted before the run.</p>',
            _overview(results),
            *(_section(result, folder) for result in results),
            "</body></html>\n",
        ]
    )


def _overview(results: list[dict[str, Any]]) -> str:
    rows = [
        f'<tr><td><a href="#{escape(r["id"])}">{escape(r["id"])}</a></td><td>{escape(r["claim"])}</td>'
        f"<td>{_badge(r)}</td></tr>"
        for r in results
    ]
    return f'<div class="wide"><table><thead><tr><th>id</th><th>claim</th><th>verdict</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _section(result: dict[str, Any], folder: Path) -> str:
    size = "quick" if result["quick"] else "full"
    facts = f"{result['source']}. Sizes ({size}): {result['sizes']}. Seed {result['seed']}, {result['seconds']:.0f} s."
    told = [("Claim", result["claim"]), ("Measured", result["measured"]), ("Reason", result["reason"])]
    return "\n".join(
        [
            f'<section id="{escape(result["id"])}"><div class="head"><h2>{escape(result["id"])}</h2>{_badge(result)}</div>',
            *(f"<p><strong>{name}.</strong> {escape(text)}</p>" for name, text in told if text),
            f'<p class="soft">{escape(facts)}</p>',
            f'<div class="figures">{"".join(_pictures(result, folder))}</div>',
            *(compare(figure) for figure in result["figures"]),
            "</section>",
        ]
    )


def _badge(result: dict[str, Any]) -> str:
    return f'<span class="verdict {CLASSES[result["verdict"]]}">{result["verdict"]}</span>'


def _pictures(result: dict[str, Any], folder: Path) -> Iterator[str]:
    """As data in the page: ids inside one SVG then cannot meet those of another."""
    for path, figure in zip(plot_experiment(result, folder), result["figures"], strict=True):
        data = b64encode(path.read_bytes()).decode()
        yield f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{escape(figure["title"])}"></figure>'


__all__ = ["write_report"]
