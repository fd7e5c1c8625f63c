"""`tidemill sql`: the running loader answers, or the warehouse file when none runs."""

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer

from tidemill.cli.rows import Form, render
from tidemill.core.errors import LoadError, SpecError, StoreError
from tidemill.core.units import format_count, format_ms

if TYPE_CHECKING:
    import pyarrow as pa

WAREHOUSE, READY_FILE, TOKEN_FILE = "warehouse.duckdb", "loader.json", "loader.token"


def sql(query: str, *, data: Path, max_rows: int, form: Form) -> None:
    """Print the answer on stdout, and its size, time and origin on stderr."""
    if not data.is_dir():
        raise SpecError(
            f"there is no data folder {data}",
            code="no_data_folder",
            next_move="run `tidemill demo` first, or name the folder with --data",
            data=str(data),
        )
    started = time.perf_counter()
    # One row more than shown tells whether there are more.
    if url := running_loader(data):
        table, origin = _ask_loader(url, data, query, max_rows + 1), f"loader at {url}"
    else:
        table, origin = _ask_file(data / WAREHOUSE, query, max_rows + 1), str(data / WAREHOUSE)
    milliseconds = (time.perf_counter() - started) * 1000
    _write(render(table.slice(0, max_rows), form))
    shown = f"{format_count(min(table.num_rows, max_rows))} row{'' if table.num_rows == 1 else 's'}"
    if table.num_rows > max_rows:
        shown = f"first {shown} (more with --max-rows)"
    typer.echo(f"{shown} in {format_ms(milliseconds)} from {origin}", err=True)


def running_loader(data: Path) -> str | None:
    """Address of the loader that owns this folder; None when none runs, whatever a dead one left behind."""
    ready = data / READY_FILE
    try:
        record = json.loads(ready.read_bytes())
        pid, url = int(record["pid"]), str(record["url"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{ready} is not the ready-file of a loader ({error!r})",
            code="bad_ready_file",
            next_move="remove it if no loader runs, or restart the loader",
        ) from error
    return url if _is_alive(pid) and _answers(url) else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _answers(url: str) -> bool:
    """Whether the port is open: a pid alone may belong to another process by now."""
    address = urlsplit(url)
    try:
        with socket.create_connection((address.hostname, address.port or 80), timeout=5):
            return True
    except OSError:
        return False


def _ask_loader(url: str, data: Path, query: str, max_rows: int) -> "pa.Table":
    try:
        token = (data / TOKEN_FILE).read_text().strip()
    except OSError as error:
        raise LoadError(
            f"a loader runs at {url}, but its token cannot be read: {error}",
            code="no_token",
            next_move="run this as the user who started the loader",
        ) from error
    from tidemill.load.client import LoaderClient

    try:
        return LoaderClient(url, token).sql(query, max_rows)
    except LoadError as error:
        if error.code != "bad_sql":
            raise
        # The loader is well: it is the user who must act, as with the file.
        raise SpecError(error.what, code=error.code, next_move=error.next_move, query=query) from error


def _ask_file(warehouse: Path, query: str, max_rows: int) -> "pa.Table":
    """Rows from the file itself, with the same limits as the loader's: no writing, no other files."""
    if not warehouse.exists():
        raise SpecError(
            f"there is no warehouse {warehouse}",
            code="no_warehouse",
            next_move="run `tidemill demo` first, or name its folder with --data",
            path=str(warehouse),
        )
    import duckdb
    import pyarrow as pa

    locked: dict[str, str | bool | int | float | list[str]] = {
        "enable_external_access": "false",
        "lock_configuration": "true",
    }
    try:
        connection = duckdb.connect(str(warehouse), read_only=True, config=locked)
    except duckdb.Error as error:
        busy = "lock" in str(error)
        raise LoadError(
            f"{warehouse} is held by a process that is not a ready loader" if busy else str(error),
            code="warehouse_busy" if busy else "warehouse_unreadable",
            next_move="run it again when the loader is ready, or end what holds the file"
            if busy
            else "restore the file, or load it anew",
            retryable=busy,
            path=str(warehouse),
        ) from error
    with connection:
        try:
            answer = connection.sql(query)
            if answer is None:
                return pa.table({})
            with answer.to_arrow_reader(max_rows) as batches:
                rows = pa.Table.from_batches([], schema=batches.schema)
                while rows.num_rows < max_rows and (batch := next(batches, None)) is not None:
                    rows = pa.concat_tables([rows, pa.Table.from_batches([batch])])
                return rows.slice(0, max_rows)
        except duckdb.Error as error:
            raise SpecError(
                f"the query failed: {error}", code="bad_sql", next_move="correct the query", query=query
            ) from error


def _write(text: str) -> None:
    """Print, or leave quietly when the reader (`| head`) has left."""
    try:
        sys.stdout.write(text)  # `typer.echo` would strip what looks like colour from the data
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(141) from None


__all__ = ["READY_FILE", "TOKEN_FILE", "WAREHOUSE", "running_loader", "sql"]
