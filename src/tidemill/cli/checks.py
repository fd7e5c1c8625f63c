"""What `tidemill doctor` looks at: one function a question, each answers with a finding and its fix."""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tidemill.cli.version import installed_version
from tidemill.core.errors import TidemillError
from tidemill.core.units import format_bytes, format_count

Status = Literal["OK", "WARN", "FAIL"]

# The demo: a master table, the staging log, the warehouse and Spark's scratch files.
NEEDED_DISK_BYTES = 2 * 10**9
# Driver JVM, two Python workers, loader, source and the demo itself.
NEEDED_MEMORY_BYTES = 3 * 10**9
LEAST_MEMORY_BYTES = 15 * 10**8
NEEDED_SHARED_MEMORY_BYTES = 64 * 10**6
NEEDED_OPEN_FILES = 1024
SPARK_TRIAL_SECONDS = 180


@dataclass(frozen=True)
class Check:
    name: str
    status: Status
    finding: str
    fix: str = ""


def packages() -> Check:
    missing = [
        p for p in ("pyspark", "numba", "pyarrow", "duckdb", "uvicorn") if installed_version(p) is None
    ]
    if missing:
        return Check(
            "packages", "FAIL", f"not installed: {', '.join(missing)}", "pip install 'tidemill[all]'"
        )
    return Check(
        "packages", "OK", f"PySpark {installed_version('pyspark')}, DuckDB {installed_version('duckdb')}"
    )


def java() -> Check:
    from tidemill.spark.java import find_java

    try:
        found = find_java()
    except TidemillError as error:
        return Check("java", "FAIL", error.what, error.next_move)
    skipped = "".join(f"; skipped {note}" for note in found.notes)
    return Check("java", "OK", f"Java {found.version} by {found.origin}: {found.home}{skipped}")


def worker_python() -> Check:
    """Tidemill's sessions use this interpreter; a variable may lead the user's own sessions elsewhere."""
    named = os.environ.get("PYSPARK_PYTHON")
    here = f"Spark's workers run {sys.executable}"
    if named is None or shutil.which(named) == sys.executable:
        return Check("worker python", "OK", here)
    return Check(
        "worker python",
        "WARN",
        f"{here}, but PYSPARK_PYTHON={named} would be used by a session of your own",
        "unset PYSPARK_PYTHON",
    )


def loopback() -> Check:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
            port = server.getsockname()[1]
    except OSError as error:
        fix = "bring the loopback interface up (ip link set lo up), or allow it in the sandbox or firewall"
        return Check("loopback", "FAIL", f"no connection over 127.0.0.1: {error}", fix)
    try:
        address = socket.getaddrinfo("localhost", None, socket.AF_INET)[0][4][0]
    except OSError as error:
        fix = 'add the line "127.0.0.1 localhost" to /etc/hosts'
        return Check("loopback", "WARN", f"localhost has no IPv4 address: {error}", fix)
    return Check("loopback", "OK", f"connected over 127.0.0.1:{port}, localhost is {address}")


def disk(data: Path) -> Check:
    place = next(folder for folder in (data, *data.absolute().parents) if folder.exists())
    if not os.access(place, os.W_OK):
        return Check("disk", "FAIL", f"{place.absolute()} is not writable", "name another folder with --data")
    free = shutil.disk_usage(place).free
    finding = (
        f"{format_bytes(free)} free at {place.absolute()}, the demo needs {format_bytes(NEEDED_DISK_BYTES)}"
    )
    if free < NEEDED_DISK_BYTES:
        return Check(
            "disk", "FAIL", finding, "free some space, or name a folder on a larger disk with --data"
        )
    return Check("disk", "OK", finding)


def memory() -> Check:
    available = available_memory_bytes()
    finding = f"{format_bytes(available)} available, the demo needs {format_bytes(NEEDED_MEMORY_BYTES)}"
    fix = "end other programs, or give the container or machine more memory"
    if available < LEAST_MEMORY_BYTES:
        return Check("memory", "FAIL", finding, fix)
    return (
        Check("memory", "OK", finding)
        if available >= NEEDED_MEMORY_BYTES
        else Check("memory", "WARN", finding, fix)
    )


def available_memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """What the machine has left, or the container where that is less."""
    import psutil

    available: int = psutil.virtual_memory().available
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return min(available, int(limit) - int(used))
    except (OSError, ValueError):  # no container, or a limit of "max"
        return available


def shared_memory(folder: Path = Path("/dev/shm")) -> Check:  # noqa: S108 -- the thing that is looked at
    fix = "give the container more, such as --shm-size=1g"
    if not folder.is_dir():
        return Check("shared memory", "WARN", f"there is no {folder}", fix)
    usage = shutil.disk_usage(folder)
    finding = f"{format_bytes(usage.free)} of {format_bytes(usage.total)} free in {folder}"
    status: Status = "OK" if usage.free >= NEEDED_SHARED_MEMORY_BYTES else "WARN"
    return Check("shared memory", status, finding, "" if status == "OK" else fix)


def open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= NEEDED_OPEN_FILES:
        shown = "no limit" if soft == resource.RLIM_INFINITY else f"limit {format_count(soft)}"
        return Check("open files", "OK", shown)
    finding = f"limit {soft}, less than {NEEDED_OPEN_FILES}"
    return Check("open files", "WARN", finding, f"ulimit -n {NEEDED_OPEN_FILES} (hard limit {hard})")


def session_settings(folder: Path | None = None) -> Check:
    """What sessions of the user's own lack, as far as files tell; `tm.explain` asks the session itself."""
    from tidemill.spark.explain_settings import missing_settings

    folder = folder or _spark_settings_folder()
    file = folder / "spark-defaults.conf" if folder is not None else None
    if file is None or not file.is_file():
        return Check(
            "settings", "OK", "Tidemill's sessions have them; tm.explain tells what one of your own lacks"
        )
    lines = (line.split(maxsplit=1) for line in file.read_text().replace("=", " ").splitlines())
    given = {line[0]: line[1].strip() for line in lines if len(line) == 2 and not line[0].startswith("#")}
    missing = list(missing_settings(given.get))
    if not missing:
        return Check("settings", "OK", f"{file} has those that matter")
    told = "; ".join(f"{found.key} ({found.effect})" for found in missing)
    fix = "add " + ", ".join(f'"{found.key} {found.wanted}"' for found in missing)
    return Check("settings", "WARN", f"{file} lacks {told}", fix)


def _spark_settings_folder() -> Path | None:
    if os.environ.get("SPARK_CONF_DIR"):
        return Path(os.environ["SPARK_CONF_DIR"])
    return Path(os.environ["SPARK_HOME"], "conf") if os.environ.get("SPARK_HOME") else None


def kernels(package: Path = Path(__file__).parents[1]) -> Check:
    """Whether the join kernels lie compiled on disk, newer than their sources."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    if folder:
        return Check("kernels", "OK", f"compiled into NUMBA_CACHE_DIR={folder}; not looked at")
    compiled = list(package.glob("join/**/__pycache__/*.nbi"))
    stale = [index for index in compiled if _is_stale(index)]
    fix = "python -m tidemill.join.parts.warm_up"
    if not compiled:
        return Check("kernels", "WARN", "not compiled yet: the first run waits for it", fix)
    if stale:
        return Check("kernels", "WARN", f"{len(stale)} of {len(compiled)} are older than their source", fix)
    return Check("kernels", "OK", f"{len(compiled)} compiled")


def _is_stale(index: Path) -> bool:
    source = index.parent.parent / f"{index.name.split('.')[0]}.py"
    return source.exists() and source.stat().st_mtime > index.stat().st_mtime


def spark() -> Check:
    """Whether a session really starts and its Python workers answer; in a process that can be given up."""
    trial = [sys.executable, "-m", "tidemill.cli.spark_trial"]
    try:
        done = subprocess.run(trial, capture_output=True, text=True, timeout=SPARK_TRIAL_SECONDS, check=True)
        report = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        finding = f"no answer within {SPARK_TRIAL_SECONDS} s"
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        finding = f"did not start: {lines[-1]}"
    else:
        if report["worker_python"] == sys.executable:
            return Check(
                "spark",
                "OK",
                f"Spark {report['spark']} on Java {report['java']} counted, stored and mapped rows",
            )
        finding = f"workers run {report['worker_python']}, not {sys.executable}"
    return Check("spark", "FAIL", finding, f"see all of it: {' '.join(trial)}")


def all_checks(data: Path, *, deep: bool) -> Iterator[Check]:
    """Each check as it is done, the quick ones first."""
    yield packages()
    yield java()
    yield worker_python()
    yield loopback()
    yield disk(data)
    yield memory()
    yield shared_memory()
    yield open_files()
    yield kernels()
    yield session_settings()
    if deep:
        yield spark()


__all__ = ["Check", "Status", "all_checks"]
