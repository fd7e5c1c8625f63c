"""Starts that must not be: one clear line and the exit code of who must act."""

import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.core.errors import SpecError
from tidemill.load.client import create_token, read_token

from .harness import LoaderProcess


def refused(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.returncode, done.stderr


def test_a_used_port(loader_process: LoaderProcess) -> None:
    with socket.create_server(("127.0.0.1", loader_process.port)):
        code, text = refused(loader_process.command())
    assert code == 2
    assert f"port {loader_process.port}" in text
    assert not loader_process.warehouse.exists()


def test_a_second_loader_on_one_warehouse(loader_process: LoaderProcess) -> None:
    loader_process.start()
    code, text = refused(loader_process.command("--port", "0"))
    assert code == 5
    assert "held by another process" in text
    assert str(loader_process.warehouse) in text


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (("--host", "0.0.0.0"), "--allow-remote"),
        (("--host", "shop.example"), "no IP address"),
        (("--token-file", "/nowhere/token"), "token file"),
        (("--memory-limit", "plenty"), "'plenty' is not a size"),
    ],
)
def test_a_wrong_option(loader_process: LoaderProcess, more: tuple[str, str], part: str) -> None:
    code, text = refused(loader_process.command(*more))
    assert code == 2
    assert part in text


def test_a_wrong_failpoint_is_not_ignored(
    loader_process: LoaderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_FAIL_LOADER", "sometimes")
    code, text = refused(loader_process.command())
    assert code == 2
    assert "before_commit:N" in text


def test_tokens_are_private_random_and_never_replaced(tmp_path: Path) -> None:
    create_token(tmp_path / "a")
    create_token(tmp_path / "b")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert len(read_token(tmp_path / "a")) >= 43
    assert read_token(tmp_path / "a") != read_token(tmp_path / "b")
    with pytest.raises(SpecError, match="exists"):
        create_token(tmp_path / "a")
    (tmp_path / "b").chmod(0o644)
    with pytest.raises(SpecError, match="chmod 600"):
        read_token(tmp_path / "b")


def test_the_client_imports_no_server_and_no_warehouse() -> None:
    code = "import sys, tidemill.load.client; print([m for m in ('duckdb', 'starlette', 'uvicorn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
