"""DuckDB's errors as ours: who must act, and whether the handle is dead."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from tidemill.core.errors import LoadError

# After these the whole handle is invalid, reads too, even once the cause (a full disk) is gone.
DEAD_HANDLE_ERRORS = (duckdb.FatalException, duckdb.InternalException, duckdb.IOException)


@contextmanager
def translated_errors() -> Iterator[None]:
    try:
        yield
    except DEAD_HANDLE_ERRORS as error:
        raise warehouse_down(error) from error
    except duckdb.OutOfMemoryException as error:
        raise LoadError(
            f"the warehouse ran out of its memory: {_one_line(error)}",
            code="warehouse_memory",
            next_move="raise the loader's memory limit, or load smaller batches",
            retryable=True,
            status=503,
        ) from error
    except (duckdb.DataError, duckdb.IntegrityError) as error:
        raise LoadError(
            f"the warehouse refused the rows: {_one_line(error)}",
            code="rows_refused",
            next_move="correct the rows, or widen the column",
            status=422,
        ) from error
    except duckdb.Error as error:
        raise LoadError(
            f"the warehouse failed: {_one_line(error)}",
            code="warehouse_error",
            next_move="read the message",
            status=500,
        ) from error


def warehouse_down(why: object) -> LoadError:
    return LoadError(
        f"the warehouse is down: {_one_line(why)}",
        code="warehouse_down",
        next_move="check disk space and the file; the loader reopens it by itself",
        retryable=True,
        status=503,
        retry_after_seconds=1,
    )


def cannot_open(path: Path, error: duckdb.Error) -> LoadError:
    if "Could not set lock" in str(error):
        return LoadError(
            f"the warehouse {path} is held by another process: {_one_line(error)}",
            code="warehouse_locked",
            next_move="stop that process, or ask the loader that runs there",
            retryable=True,
            status=503,
            path=str(path),
        )
    return LoadError(
        f"the warehouse {path} cannot be opened: {_one_line(error)}",
        code="warehouse_unusable",
        next_move="check the path, its rights and the disk",
        status=503,
        path=str(path),
    )


def bad_sql(what: object, next_move: str) -> LoadError:
    return LoadError(f"the query failed: {_one_line(what)}", code="bad_sql", next_move=next_move, status=400)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())[:500]


__all__ = ["DEAD_HANDLE_ERRORS", "bad_sql", "cannot_open", "translated_errors", "warehouse_down"]
