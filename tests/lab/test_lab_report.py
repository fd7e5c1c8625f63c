"""The page of the lab, as text and as a browser shows it."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemill.core.errors import StoreError
from tidemill.lab.envelope import write_results
from tidemill.lab.report import write_report

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def result(name: str, verdict: str, **facts: Any) -> dict[str, Any]:
    curves = [
        {"label": "mesh", "kind": "measured", "x": [1.0, 10.0], "y": [2000.0, 26000.0]},
        {"label": "mesh", "kind": "predicted", "x": [1.0, 10.0], "y": [2200.0, 26000.0]},
    ]
    figure = {
        "title": "Rate <over> memory", "x_label": "MB", "y_label": "rows/s",
        "curves": curves, "log_x": True, "log_y": False,
    }  # fmt: skip
    usual = {
        "id": name, "claim": "more memory & more rows", "source": "a paper", "sizes": "small", "seed": 7, "quick": True,
        "holds": verdict == "holds", "measured": "26,000 rows/s", "reason": "", "values": {}, "figures": [figure],
        "verdict": verdict, "failed": verdict == "failed", "seconds": 1.0, "finished_at": "2026-11-16T08:00:00+00:00",
    }  # fmt: skip
    return usual | facts


@pytest.fixture
def page(tmp_path: Path) -> Path:
    reason = "an SSD has no seek: " + "one read costs the same wherever it is, " * 4
    results = [
        result("mesh-10a", "holds"),
        result("mesh-10b", "does not hold here", reason=reason),
        result("moij-7d", "not measured", holds=None, figures=[], measured="", reason="no generator"),
        result("xhybrid-3a", "failed", figures=[], measured="", reason="exit code 1: <ValueError>"),
    ]
    for one in results:
        write_results(tmp_path / f"{one['id']}.json", "lab", 7, [one])
    return write_report(tmp_path)


def test_the_page_has_claims_verdicts_figures_and_errors_of_predictions(page: Path):
    text = page.read_text()
    assert "4 experiments: 1 holds, 1 does not hold here, 1 not measured, 1 failed." in text
    assert text.count("data:image/svg+xml;base64,") == 2
    assert "more memory &amp; more rows" in text
    assert "exit code 1: &lt;ValueError&gt;" in text
    assert "+10.0%" in text
    # nothing is fetched: every address is inside the page
    assert re.findall(r'(?:src|href)="(?!#|data:)', text) == []


def test_a_later_result_of_an_id_replaces_the_earlier(page: Path):
    later = result("mesh-10b", "holds", finished_at="2026-11-16T09:00:00+00:00")
    write_results(page.parent / "a-first-by-name.json", "lab", 7, [later])
    (page.parent / "other.json").write_text(json.dumps({"name": "joins", "results": []}))
    assert "4 experiments: 2 holds, 1 not measured, 1 failed." in write_report(page.parent).read_text()


def test_a_folder_without_results_is_refused(tmp_path: Path):
    with pytest.raises(StoreError, match="lab run all"):
        write_report(tmp_path)


@pytest.fixture
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("no browser is installed")
        pytest.skip("no browser is installed: apt-get install chromium-headless-shell")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.parametrize("width", [1200, 390])
def test_a_browser_shows_every_figure_and_nothing_is_wider_than_the_screen(
    page: Path, browser: Any, width: int, tmp_path: Path
):
    view = browser.new_page(viewport={"width": width, "height": 800})
    complaints: list[str] = []
    view.on("console", lambda message: complaints.append(message.text))
    view.on("pageerror", lambda error: complaints.append(str(error)))
    view.on("request", lambda asked: complaints.append(asked.url) if asked.url.startswith("http") else None)
    view.goto(page.as_uri())
    shown = view.eval_on_selector_all(
        "img", "all => all.map(i => i.naturalWidth > 300 && i.clientWidth > 250)"
    )
    assert shown == [True, True]
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    view.click("summary >> nth=0")
    assert view.is_visible("text=+10.0%")
    view.click("a[href='#mesh-10b']")
    assert view.evaluate("document.querySelector('#mesh-10b').getBoundingClientRect().top") < 800
    colours = {
        name: view.eval_on_selector(f".{name}", "e => getComputedStyle(e).backgroundColor")
        for name in ("holds", "not", "unknown", "failed")
    }
    assert len(set(colours.values())) == 4
    assert complaints == []
    view.screenshot(path=tmp_path / "page.png", full_page=True)
