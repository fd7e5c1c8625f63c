"""Processes of the demo: started together, watched, ended together; none outlives the demo."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidemill.core.errors import InternalError

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
PATIENCE_S = 90.0


def _die_with_parent() -> None:
    # Even kill -9 of the demo leaves nothing behind: the kernel tells the children.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """One process and how to start it again."""

    def __init__(self, name: str, module: str, arguments: Callable[[], list[str]], output: Path) -> None:
        self.name = name
        self.starts = 0
        self._module = module
        self._arguments = arguments
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", self._module, *self._arguments()]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C reaches the demo alone, which then ends its children in order
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one call into the kernel, no lock is taken
            )
        self.starts += 1

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll() if self._process else None

    def wait_ready(self, ready_file: Path) -> dict[str, Any]:
        """What the process wrote once it was ready; its own words when it ended before."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if ready_file.exists():
                ready: dict[str, Any] = json.loads(ready_file.read_bytes())
                if ready["pid"] == self.pid:
                    return ready
            if not self.running:
                raise self.failed()
            time.sleep(0.05)
        raise InternalError(
            f"the {self.name} was not ready after {PATIENCE_S:.0f} s",
            code="not_ready",
            next_move=f"read {self._output}",
        )

    def failed(self) -> InternalError:
        """An error with the last line that the process printed."""
        lines = self._output.read_text(errors="replace").strip().splitlines() if self._output.exists() else []
        last = lines[-1] if lines else "it printed nothing"
        return InternalError(
            f"the {self.name} ended with exit code {self.exit_code}: {last}",
            code="child_failed",
            next_move=f"read {self._output}",
            child=self.name,
        )

    def end(self, patience_s: float = 10.0) -> None:
        """Ask it to stop, insist after a while; its own children end with it."""
        if self._process is None:
            return
        if self.running:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        self.kill()

    def kill(self) -> None:
        """End its whole group at once, also what it may have left behind."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


__all__ = ["Child"]
