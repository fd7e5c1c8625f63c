"""From a connection string to pages: which engine, and the one pass over the table that cuts it."""

from dataclasses import replace
from pathlib import Path

from tidemill.core.errors import SpecError, StoreError
from tidemill.master.groups import CodeCollisionError
from tidemill.master.keys import KeyForm
from tidemill.master.rows import RowLayout
from tidemill.master.sql_engine import Engine
from tidemill.master.sql_pages import TablePages, cut_pages
from tidemill.master.sql_table import Table

_MOST_SEEDS = 4


def engine_for(database: str | Path) -> Engine:
    """The engine that a connection string or the first bytes of a file tell."""
    if str(database).startswith(("postgresql://", "postgres://")):
        from tidemill.master.sql_postgres import PostgresEngine

        return PostgresEngine(str(database))
    file = Path(database)
    try:
        with file.open("rb") as opened:
            head = opened.read(16)
    except OSError as error:
        raise StoreError(
            f"cannot open {file}: {error.strerror}",
            code="unreadable",
            next_move="give postgresql://user@host/name, or the file of a SQLite or DuckDB database",
            file=str(file),
        ) from error
    if head.startswith(b"SQLite format 3"):
        from tidemill.master.sql_sqlite import SqliteEngine

        return SqliteEngine(file)
    if head[8:12] == b"DUCK":
        from tidemill.master.sql_duckdb import DuckdbEngine

        return DuckdbEngine(file)
    raise SpecError(
        f"{file} is neither a SQLite nor a DuckDB database",
        code="unknown_database",
        next_move="give postgresql://user@host/name, or the file of a SQLite or DuckDB database",
        file=str(file),
    )


def surveyed(table: Table, page_bytes: int, memory_bytes: int) -> tuple[KeyForm, TablePages]:
    """Pages, and the form of the key under which no two keys of the table have one code."""
    form = KeyForm.choose(table.schema, [column.name for column in table.key])
    fixed = RowLayout.of(form.told_by(table.schema), first=form.code_column).fixed_bytes
    for seed in range(_MOST_SEEDS):
        seeded = replace(form, seed=seed)
        batches = table.engine.stream(table.survey(), table.survey_wire)
        try:
            return seeded, cut_pages(
                batches, seeded, fixed_row_bytes=fixed, page_bytes=page_bytes, memory_bytes=memory_bytes
            )
        except CodeCollisionError:
            continue
    raise StoreError(
        f"keys of {table.name} come again after others in the order of the database, whatever the hash",
        code="key_order",
        next_move="give the key columns a collation that tells different texts apart",
    )


__all__ = ["engine_for", "surveyed"]
