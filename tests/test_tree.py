"""Laws of the tree itself: what no file may hold, how long it may be, which way imports point."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MADE_BY_TOOLS = {
    "build",
    "dist",
    "tidemill-bench",
    "tidemill-bench-spark",
    "tidemill-demo",
    "spark-warehouse",
    "__pycache__",
}
MOST_LINES = 400

# In pieces, so that this file does not hold what it forbids.
REGISTRY_HOSTS = (
    "pypi" + ".org",
    "python" + "hosted.org",
    "anaconda" + ".org",
    "repo1." + "maven",
    "npm" + "js.",
    "simple" + "/pip",
)
INDEX_OPTIONS = ("index" + "-url", "find" + "-links", "trusted" + "-host")


def files_of_the_tree() -> Iterator[Path]:
    """Every file that people wrote: no environment, cache or data folder."""
    for folder, names, files in os.walk(ROOT):
        hidden = {name for name in names if name.startswith(".") and name != ".ci"}
        names[:] = [name for name in names if name not in MADE_BY_TOOLS | hidden]
        yield from (Path(folder, file) for file in files)


def test_no_file_names_a_package_registry():
    found = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in files_of_the_tree()
        for host in REGISTRY_HOSTS
        if host.encode() in path.read_bytes().lower()
    ]
    assert found == []


def test_lock_names_no_index():
    lock = (ROOT / "requirements.lock").read_text()
    assert [option for option in INDEX_OPTIONS if option in lock] == []
    assert "://" not in lock


def test_every_pin_has_a_hash():
    entries = re.split(
        r"\n(?=\S)", re.sub(r"(?m)^\s*#.*\n", "", (ROOT / "requirements.lock").read_text()).strip()
    )
    unpinned = [entry for entry in entries if not re.match(r"[A-Za-z0-9._\[\]-]+==[^ ]+ ", entry)]
    unhashed = [entry for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry)]
    assert len(entries) > 20
    assert unpinned == []
    assert unhashed == []


@pytest.mark.parametrize("folder", ["src", "tests", "tools"])
def test_source_files_are_short(folder):
    lines = {
        path: len(path.read_text().splitlines())
        for path in files_of_the_tree()
        if path.suffix == ".py" and path.is_relative_to(ROOT / folder)
    }
    assert lines
    assert {str(path): count for path, count in lines.items() if count >= MOST_LINES} == {}


def test_imports_point_one_way():
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
