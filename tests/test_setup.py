"""`make setup`: what it does again when something has changed, without installing anything."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
KERNEL = (
    "from numba import njit\nfrom tidemill.master.sizes import PAGE_BYTES\nfrom tidemill.rows import Rows\n"
)


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for a small tree of its own; `done` tells what it ran."""
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "tools" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    sources = tmp_path / "src"
    for name, text in {
        "tidemill/master/some_kernels.py": KERNEL,
        "tidemill/master/sizes.py": "PAGE_BYTES = 4096\n",
        "tidemill/rows.py": "class Rows: ...\n",
    }.items():
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_text(text)
    (tmp_path / ".venv").mkdir()
    for name, path in {
        "SOURCES": sources, "STAMP": tmp_path / ".venv/setup", "KERNEL_STAMP": tmp_path / ".venv/kernels",
    }.items():  # fmt: skip
        monkeypatch.setattr(script, name, path)
    script.done = []
    monkeypatch.setattr(script, "install_with_uv", lambda _: script.done.append("install"))
    monkeypatch.setattr(script, "install_with_pip", lambda: script.done.append("install"))
    monkeypatch.setattr(script, "run", lambda command: script.done.append(command[-1].split(".")[-1]))
    return script


def done_now(setup: ModuleType) -> list[str]:
    setup.done.clear()
    assert setup.main() == 0
    return list(setup.done)


def test_the_first_time_installs_and_compiles_and_the_second_does_nothing(setup: ModuleType) -> None:
    assert done_now(setup) == ["install", "warm_up"]
    assert done_now(setup) == []


@pytest.mark.parametrize("changed", ["master/some_kernels.py", "master/sizes.py", "new_loop.py"])
def test_kernels_are_compiled_anew_when_what_they_are_made_of_changed(
    setup: ModuleType, changed: str
) -> None:
    done_now(setup)
    cache = setup.SOURCES / "tidemill/master/__pycache__"
    cache.mkdir()
    stale, kept = [cache / "caller.f-1.py312.nbi", cache / "caller.f-1.py312.1.nbc"], cache / "caller.pyc"
    for file in (*stale, kept):
        file.touch()
    with (setup.SOURCES / "tidemill" / changed).open("a") as file:
        file.write("import numba\n" if changed == "new_loop.py" else "# changed\n")
    assert done_now(setup) == ["warm_up"]
    assert [file.exists() for file in (*stale, kept)] == [False, False, True]
    assert done_now(setup) == []


def test_other_files_may_change(setup: ModuleType) -> None:
    done_now(setup)
    (setup.SOURCES / "tidemill/rows.py").write_text("class Rows:\n    count = 0\n")
    assert done_now(setup) == []


def test_what_broke_off_is_done_again(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: list[str]) -> None:
        raise SystemExit(3)

    with monkeypatch.context() as broken:
        broken.setattr(setup, "run", fail)
        with pytest.raises(SystemExit):
            setup.main()
    assert done_now(setup) == ["warm_up"]


def test_another_environment_needs_other_kernels(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    done_now(setup)
    monkeypatch.setattr(setup, "fingerprint", lambda: "another lock")
    assert done_now(setup) == ["install", "warm_up"]


def test_the_files_of_the_real_tree_are_found(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ROOT / "src" / "tidemill"
    monkeypatch.setattr(setup, "SOURCES", ROOT / "src")
    found = set(setup.kernel_files())
    kernels = {path for path in real.rglob("*.py") if "@njit" in path.read_text()}
    assert len(kernels) > 20
    # Kernels hold constants of the last two.
    assert kernels | {real / "master/layout.py", real / "master/board.py"} <= found
    assert real / "cli/main.py" not in found
