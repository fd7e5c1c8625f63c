"""Flink in an environment of its own, with the jars that reach a database; made once and kept."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tidemill.core.errors import StoreError

FLINK = "apache-flink==2.3.0"
JARS = (
    "org.apache.flink:flink-connector-jdbc-core:4.0.0-2.0",
    "org.apache.flink:flink-connector-jdbc-postgres:4.0.0-2.0",
    "org.postgresql:postgresql:42.7.8",
)
SETUP_S = 600.0


@dataclass(frozen=True)
class Flink:
    python: Path
    jars: list[str]


def flink(folder: Path) -> Flink:
    """The environment in this folder; what is missing of it is fetched by pip and by Maven.

    Raises:
        StoreError: With code `no_flink`, and what could not be had.
    """
    python, jars = folder / "venv" / "bin" / "python", folder / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "installed").exists():
        _run("a virtual environment", [sys.executable, "-m", "venv", "--clear", str(folder / "venv")])
        _run(FLINK, [str(python), "-m", "pip", "install", "--quiet", FLINK])
        (folder / "installed").touch()
    for jar in JARS:
        if not (jars / _file_name(jar)).exists():
            _fetch(jar, jars)
    return Flink(python, [(jars / _file_name(jar)).as_uri() for jar in JARS])


def _fetch(jar: str, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise _missing(jar, "Maven (mvn) is not installed")
    options = [f"-Dartifact={jar}", f"-DoutputDirectory={folder}", "-Dtransitive=false"]
    _run(jar, [maven, "--quiet", "--batch-mode", "dependency:get", options[0], options[2]])
    _run(jar, [maven, "--quiet", "--batch-mode", "dependency:copy", *options[:2]])


def _run(wanted: str, command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SETUP_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise _missing(wanted, f"no answer within {SETUP_S:.0f} s") from None
    if done.returncode:
        words = (done.stdout + done.stderr).strip().splitlines() or ["no word about it"]
        raise _missing(wanted, next((line for line in words if "ERROR" in line), words[-1]))


def _missing(wanted: str, why: str) -> StoreError:
    return StoreError(
        f"{wanted} cannot be had here: {why}",
        code="no_flink",
        next_move="leave flink-lookup out, or install it",
    )


def _file_name(jar: str) -> str:
    _, name, version = jar.split(":")
    return f"{name}-{version}.jar"


__all__ = ["Flink", "flink"]
