"""The other core at its slowest: nothing is put together before somebody waits for it."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tidemill.join.parts.putter_kernels import ask_batch
from tidemill.join.parts.side_by_side_kernels import put_beside_batch, put_beside_rows
from tidemill.master.lent import Loan


class LateAsked:
    """Whatever has changed since it was asked for shows."""

    is_done = False

    def __init__(self, put: Callable[..., None], arguments: tuple[Any, ...], loan: Loan, schema: pa.Schema):
        self._put, self._arguments, self._loan, self._schema = put, arguments, loan, schema

    def finish(self) -> None:
        """Later still."""

    def result(self) -> tuple[pa.RecordBatch, float]:
        self._put(*self._arguments, self._loan.room)
        return self._loan.batch(self._schema), 0.0


class LatePutter:
    """Takes the place of a `Putter`."""

    def ask(
        self, ask: Any, arguments: tuple[Any, ...], loan: Loan, schema: pa.Schema, _: tuple[Any, ...]
    ) -> LateAsked:
        return LateAsked(put_beside_batch if ask is ask_batch else put_beside_rows, arguments, loan, schema)


__all__ = ["LatePutter"]
