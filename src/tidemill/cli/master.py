"""`tidemill master`: look at a master store, change it, let it follow a table."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.core.errors import SpecError, TidemillError

if TYPE_CHECKING:
    from tidemill.master.feeds import Fed

master = typer.Typer(help="Look at master data and keep it up to date.", no_args_is_help=True)

Store = Annotated[Path, typer.Argument(help="Folder of the master store.")]
Memory = Annotated[str, typer.Option(help="For comparing tables.")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


@master.command()
def show(store: Store, json_output: AsJson = False) -> None:
    """Versions of a store: rows, age, batches that claim them; and how far its feeds have come."""
    from tidemill.master.layout import Manifest, current_version, version_folder

    current = current_version(store)
    versions = versions_of(store, current)
    positions = Manifest.read(version_folder(store, current)).positions
    if json_output:
        typer.echo(json.dumps({"current": current, "versions": versions, "positions": positions}))
        return
    import pyarrow as pa

    from tidemill.cli.rows import render

    typer.echo(render(pa.Table.from_pylist(versions), "table"), nl=False)
    for feed, position in positions.items():
        typer.echo(f"feed {feed} is at {position}")


def versions_of(store: Path, current: int) -> list[dict[str, Any]]:
    """What is to be said of each version, oldest first."""
    from tidemill.master.expire import CLAIMS_FOLDER
    from tidemill.master.layout import Manifest, version_folder, versions_on_disk
    from tidemill.spark.version_pin import read_claim

    folder = store / CLAIMS_FOLDER
    claims = Counter(read_claim(file).version for file in folder.glob("[!.]*") if folder.is_dir())
    found = []
    for version in versions_on_disk(store):
        told = Manifest.read(version_folder(store, version))
        found.append(
            {
                "version": version,
                "is_current": version == current,
                "rows": told.rows,
                "keys": told.distinct_keys,
                "files": len(told.files),
                "bytes": sum(file.bytes for file in told.files),
                "age_seconds": round(time.time() - told.created_unix_ms / 1000, 1),
                "claims": claims[version],
            }
        )
    return found


@master.command()
def apply(
    store: Store,
    changes: Annotated[Path, typer.Argument(help="Parquet file or folder of change rows.")],
    feed: Annotated[str, typer.Option(help="Where the changes come from.")],
    at: Annotated[int, typer.Option(help="Their position: the store takes each of a feed once.", min=0)],
    operation: Annotated[str, typer.Option(help="Column with insert, update or delete.")] = "_op",
    order: Annotated[str | None, typer.Option(help="Column that tells the last change of a key.")] = None,
    json_output: AsJson = False,
) -> None:
    """Apply change rows, unless the store has them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tidemill.master.feeds import apply_once

    try:
        rows = pq.read_table(changes)
    except (OSError, pa.ArrowInvalid) as error:
        raise SpecError(
            f"cannot read Parquet from {changes}: {error}",
            code="source_unreadable",
            next_move="give an existing Parquet file or folder",
        ) from error
    _tell(apply_once(store, rows, feed=feed, at=at, operation=operation, order=order), json_output)


@master.command()
def follow(
    store: Store,
    table: Annotated[str, typer.Argument(help="Delta table, or a folder of Parquet files.")],
    seconds: Annotated[float, typer.Option(help="Between two looks.", min=0.01)] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, then end.")] = False,
    memory: Memory = "512 MB",
    json_output: AsJson = False,
) -> None:
    """Keep a store equal to a table, until interrupted; versions that nobody claims expire after an hour."""
    from tidemill.master import MasterData

    while True:
        try:
            fed = _followed(store, table, memory)
            if once or fed.how in ("applied", "rebuilt"):
                _tell(fed, json_output)
                MasterData.open(store).expire()
        except TidemillError as error:
            if once or not error.retryable:
                raise
            typer.echo(f"tidemill: {error}. Trying again in {seconds:g} s", err=True)
        if once:
            return
        time.sleep(seconds)


def _followed(store: Path, table: str, memory: str) -> "Fed":
    from tidemill.master.feeds import re_read
    from tidemill.master.feeds_delta import follow_delta

    is_delta = "://" in table or (Path(table) / "_delta_log").is_dir()
    return follow_delta(store, table, memory=memory) if is_delta else re_read(store, table, memory=memory)


def _tell(fed: "Fed", json_output: bool) -> None:
    if json_output:
        typer.echo(json.dumps({"how": fed.how, "version": fed.version, "changes": fed.changes}))
        return
    texts = {
        "applied": f"{fed.changes} changes are version {fed.version}",
        "already": f"version {fed.version} has these changes already",
        "nothing": f"nothing has changed; version {fed.version} is current",
        "rebuilt": f"more changes than memory: version {fed.version} was built anew",
    }
    typer.echo(texts[fed.how])


__all__ = ["master", "versions_of"]
