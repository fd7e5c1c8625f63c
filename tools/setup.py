"""Make `.venv` hold exactly what `requirements.lock` says, and kernels be compiled as they stand; at once when all is so.

Runs on the Python that the user has (3.11 or newer) with its standard library alone.
Uses uv when it is on the PATH, plain venv and pip otherwise; both check every hash.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
SOURCES = ROOT / "src"
STAMP = VENV / ".tidemill-setup"
KERNEL_STAMP = VENV / ".tidemill-kernels"
LEAST_PYTHON = (3, 11)


def main() -> int:
    if sys.version_info < LEAST_PYTHON:
        found = ".".join(map(str, sys.version_info[:3]))
        print(
            f"tidemill needs Python 3.11 or newer, this is {found} ({sys.executable}).\n"
            "Next: make setup PYTHON=python3.12   (or any newer Python that you have)",
            file=sys.stderr,
        )
        return 1
    started = time.monotonic()
    wanted, kernels = fingerprint(), kernel_fingerprint()
    if not is_stamped(STAMP, wanted):
        install(wanted)
    if not is_stamped(KERNEL_STAMP, wanted + kernels):
        compile_kernels(wanted + kernels)
        say(f"ready after {time.monotonic() - started:.0f} s")
    return 0


def is_stamped(stamp: Path, wanted: str) -> bool:
    return stamp.exists() and stamp.read_text() == wanted


def install(wanted: str) -> None:
    uv = shutil.which("uv")
    say(f"setting up {VENV.name} with {'uv' if uv else 'pip'} (first time: a few minutes)")
    STAMP.unlink(missing_ok=True)
    install_with_uv(uv) if uv else install_with_pip()
    STAMP.write_text(wanted)


def compile_kernels(wanted: str) -> None:
    """Compile all of them anew: Numba notices that a file has changed, and not that a kernel it calls has."""
    say("compiling join kernels (a minute or two)")
    KERNEL_STAMP.unlink(missing_ok=True)
    for pattern in ("*.nbi", "*.nbc"):
        for compiled in SOURCES.rglob(f"__pycache__/{pattern}"):
            compiled.unlink()
    run([python(), "-m", "tidemill.join.parts.warm_up"])
    KERNEL_STAMP.write_text(wanted)


def kernel_fingerprint() -> str:
    digest = hashlib.sha256()
    for path in kernel_files():
        digest.update(str(path.relative_to(SOURCES)).encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def kernel_files() -> list[Path]:
    """What the kernels are compiled from: files with kernels, and those whose constants they hold."""
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py")}
    has_kernels = re.compile(r"^(from|import) numba\b", re.MULTILINE)
    kernels = {path for path, text in texts.items() if has_kernels.search(text)}
    constants = {path for kernel in kernels for path in constants_of(texts[kernel])}
    return sorted(kernels | (constants & texts.keys()))


def constants_of(text: str) -> set[Path]:
    """Files from which names in capitals are imported."""
    imports = re.findall(r"^from (tidemill[\w.]*) import (\([^)]*\)|.*)", text, re.MULTILINE)
    modules = [module for module, names in imports if re.search(r"\b_?[A-Z][A-Z_0-9]+\b", names)]
    return {SOURCES.joinpath(*module.split(".")).with_suffix(".py") for module in modules}


def fingerprint() -> str:
    """What the environment was built from: the lock, the project file, the Python and the place."""
    digest = hashlib.sha256()
    for part in (LOCK.read_bytes(), (ROOT / "pyproject.toml").read_bytes()):
        digest.update(hashlib.sha256(part).digest())
    digest.update(f"{sys.version_info[:3]} {ROOT}".encode())
    return digest.hexdigest()


def install_with_uv(uv: str) -> None:
    if not venv_fits():
        run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(VENV)])
    run([uv, "pip", "sync", "--python", python(), "--require-hashes", str(LOCK)])
    run([uv, "pip", "install", "--python", python(), *PROJECT_ITSELF])


def install_with_pip() -> None:
    # An environment that uv made, or that broke off half-way, has no pip.
    if not (venv_fits() and (VENV / "bin" / "pip").exists()):
        require_ensurepip()
        run([sys.executable, "-m", "venv", "--clear", str(VENV)])
    pip = [python(), "-m", "pip", "--disable-pip-version-check", "install"]
    run([*pip, "--require-hashes", "--progress-bar", "on", "-r", str(LOCK)])
    run([*pip, "--quiet", *PROJECT_ITSELF])


def venv_fits() -> bool:
    """Whether an environment is there, for this very Python."""
    settings = VENV / "pyvenv.cfg"
    version = ".".join(map(str, sys.version_info[:3]))
    return Path(python()).exists() and settings.exists() and version in settings.read_text()


def require_ensurepip() -> None:
    if importlib.util.find_spec("ensurepip") is None:
        say(f"{sys.executable} cannot make environments with pip: its ensurepip is a package of its own here")
        say("Next: sudo apt install python3-venv   (Debian, Ubuntu), or put uv on the PATH; then make setup")
        raise SystemExit(1)


PROJECT_ITSELF = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]


def python() -> str:
    return str(VENV / "bin" / "python")


def run(command: list[str]) -> None:
    # A shell that has another environment active must not redirect pip or uv into it.
    clean = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH")}
    done = subprocess.run(command, cwd=ROOT, env=clean, check=False)
    if done.returncode != 0:
        say(f"this step failed with exit code {done.returncode}: {' '.join(command)}")
        say("Next: read its message above, then run `make setup` again; it goes on where it stopped")
        raise SystemExit(done.returncode)


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
