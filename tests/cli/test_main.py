"""Help is quick and complete; every error is one line with the exit code of its family."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.cli import main
from tidemill.core import errors

DOCUMENT = Path(__file__).parents[2] / "docs" / "exit-codes.md"
HEAVY = ("pyarrow", "numpy", "pyspark", "duckdb", "numba", "rich", "psutil", "google_crc32c", "urllib3")


def test_start_imports_nothing_heavy():
    # What makes help slow is an import; counting them does not depend on how busy the machine is.
    script = "import sys, tidemill.cli.main; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(done.stdout.split())


def test_help_lists_commands_and_exit_codes(tidemill):
    done = tidemill("--help")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    for word in ("demo", "sql", "doctor", "version", "70 fault of"):
        assert word in done.stdout


def test_every_family_has_its_exit_code_in_help_and_document():
    families = [errors.TidemillError, *errors.TidemillError.__subclasses__()]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", DOCUMENT.read_text(), re.MULTILINE)}
    assert {family.exit_code for family in families} <= main.EXIT_CODES.keys()
    assert documented == main.EXIT_CODES.keys()


@pytest.mark.parametrize(
    "arguments",
    [("--rows", "0"), ("--rate", "-1"), ("--seconds", "nan"), ("--rate", "inf"), ("--memory", "32 bananas")],
)
def test_demo_refuses_impossible_options_in_one_line(tidemill, arguments):
    done = tidemill("demo", *arguments)
    assert done.returncode == errors.SpecError.exit_code
    assert re.fullmatch(r"tidemill: .+\. Next: .+\n", done.stderr)
    assert done.stdout == ""


def test_unknown_option_is_a_wrong_request(tidemill):
    assert tidemill("demo", "--bogus").returncode == 2


def fail_with(error: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the console entry with a `version` command that raises."""
    script = f"""
import sys
from tidemill.cli import main, version
from tidemill.core.errors import *
def broken(**_): raise {error}
version.version = broken
sys.argv = ["tidemill", *{list(arguments)!r}]
main.run()
"""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_error_of_ours_is_one_line_with_the_code_of_its_family():
    done = fail_with("LoadError('loader\\n is away', code='x', next_move='start it')", "version")
    assert (done.returncode, done.stderr) == (5, "tidemill: loader is away. Next: start it\n")


def test_unexpected_error_says_how_to_see_more():
    done = fail_with("ZeroDivisionError('by zero')", "version")
    assert done.returncode == 70
    assert done.stderr.count("\n") == 1
    assert "ZeroDivisionError: by zero. Next: run again with --debug" in done.stderr


@pytest.mark.parametrize("arguments", [("version", "--debug"), ("--debug", "version")])
def test_debug_shows_the_trace_wherever_it_stands(arguments):
    done = fail_with("LoadError('loader is away', code='x')", *arguments)
    assert done.returncode == 5
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("tidemill: loader is away\n")


def test_interrupt_is_quiet():
    done = fail_with("KeyboardInterrupt", "version")
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")
