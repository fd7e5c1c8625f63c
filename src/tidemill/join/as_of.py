"""Each stream row with the version of its master row that was valid at its time: a temporal join, around any join.

The join itself knows nothing of it: it gives each row the whole history of its key, as bytes in one column
(`master/history.py`). Here the version is found by time, and its wished columns alone are decoded.

```
stream ─▶ join on the key ─▶ row, _history ─▶ version valid at row's time ─▶ row, columns of the version
```
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.core.errors import SpecError, unknown_choice
from tidemill.join.as_of_kernels import find_versions
from tidemill.join.output import Columns, How, OutputPlan
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.master import Master, MasterData
from tidemill.master.history import HISTORY_COLUMN, History, bytes_and_starts
from tidemill.master.history_times import TimeScale
from tidemill.master.rows import UInt8s


@dataclass(frozen=True)
class AsOf:
    """What the join runs, and what becomes of each batch that leaves it; travels to workers.

    >>> import tempfile
    >>> prices = pa.table({"id": [7, 7], "since": [10, 20], "until": [20, None], "price": [1.5, 1.8]})
    >>> folder = tempfile.TemporaryDirectory()
    >>> master = MasterData.build(prices, key="id", path=folder.name, history=("since", "until"))
    >>> sales = pa.schema([("product", pa.int64()), ("at", pa.int64())])
    >>> as_of = AsOf.of(sales, master, stream_key="product", time="at", how="left", columns=["price"])
    >>> as_of.plan.how, as_of.plan.output_schema.names
    ('left', ['product', 'at', '_history'])
    >>> as_of.output_schema.names
    ['product', 'at', 'price']
    """

    plan: OutputPlan
    """For the join."""
    wish: OutputPlan
    """What leaves in the end, as if the store had one row a version."""
    history: History
    time: str
    scale: TimeScale
    """Of the stream's time column."""
    carried_keys: tuple[str, ...]
    """Chosen key columns, which the join carries behind the history."""

    @classmethod
    def of(
        cls,
        stream_schema: pa.Schema,
        master: Master,
        *,
        stream_key: str | Sequence[str],
        time: str,
        how: How = "left",
        columns: Columns | None = None,
        matched_as: str | None = None,
    ) -> "AsOf":
        """The checked plan.

        Args:
            stream_schema: Of the batches that will be offered.
            master: Store that was built with a history.
            stream_key: Column of the stream, or as many as the master key has.
            time: Column of the stream; a row without a time, or at whose time no version is valid, is unmatched.
            how: inner, left, semi or anti.
            columns: Of the versions or the key, or a mapping to names in the output; all but the key if None.
            matched_as: For left joins: a boolean column, true where a version was valid.
        """
        history = master.history if isinstance(master, MasterData) else None
        if history is None:
            raise SpecError(
                "the master data has no history",
                code="no_history",
                next_move='build it with MasterData.build(..., history=("valid_from", "valid_to")), or leave out as_of',
            )
        scale = _scale_of(stream_schema, time, history)
        form = master.key_form
        wish = OutputPlan.of(
            stream_schema,
            history.flat_schema(form),
            stream_key=stream_key,
            master_key=master.key,
            how=how,
            columns=columns,
            matched_as=matched_as,
        )
        keys = tuple(name for name in wish.chosen_columns if name in form.columns)
        plan = OutputPlan.of(
            stream_schema,
            master.schema,
            stream_key=stream_key,
            master_key=master.key,
            how="inner" if how in ("inner", "semi") else "left",
            columns=_free_names([HISTORY_COLUMN, *keys], stream_schema.names),
        )
        return cls(plan, wish, history, time, scale, keys)

    @property
    def output_schema(self) -> pa.Schema:
        return self.wish.output_schema

    def pick(self, joined: pa.RecordBatch) -> pa.RecordBatch:
        """What leaves of a batch that the join gave: rows in their order, each at most once.

        Rows that the join dropped and rows that are left out here are unmatched (or, with anti, matched).
        """
        stream_columns = len(self.wish.stream_schema)
        rows, at = self._find(joined, joined.column(stream_columns))
        is_valid = at >= 0
        if self.wish.how in ("inner", "semi", "anti"):
            stays = is_valid if self.wish.how != "anti" else ~is_valid
            if not stays.all():
                joined, at, is_valid = joined.filter(pa.array(stays)), at[stays], is_valid[stays]
        stream_rows = joined.select(range(stream_columns))
        versions = self._chosen(joined, rows, at, is_valid) if self.wish.chosen_columns else None
        return self.wish.assemble(stream_rows, versions, is_valid)

    def _find(self, joined: pa.RecordBatch, histories: "pa.Array[Any]") -> tuple[UInt8s, Int64s]:
        """The bytes of all histories, and where in them the version of each row begins, or -1."""
        rows, starts = bytes_and_starts(histories)
        times, present = self.history.scale.read(joined.column(self.time), self.scale)
        at = np.empty(joined.num_rows, dtype=np.int64)
        find_versions(rows, starts, times, present.view(np.uint8), self._facts, at)
        return rows, at

    def _chosen(self, joined: pa.RecordBatch, rows: UInt8s, at: Int64s, is_valid: Bools) -> pa.RecordBatch:
        """The chosen master columns, NULL where no version is valid."""
        names = [name for name in self.wish.chosen_columns if name not in self.carried_keys]
        versions = self.history.decode(rows, at, names)
        found: dict[str, pa.Array[Any]] = dict(zip(names, versions.columns, strict=True))
        first_key = len(self.wish.stream_schema) + 1
        for number, name in enumerate(self.carried_keys, first_key):
            key = joined.column(number)
            found[name] = key if is_valid.all() else pc.if_else(pa.array(is_valid), key, None)
        return pa.RecordBatch.from_pydict({name: found[name] for name in self.wish.chosen_columns})

    @cached_property
    def _facts(self) -> Int64s:
        layout = self.history.layout
        slots = {slot.name: slot for slot in layout.slots}
        begin, end = slots[self.history.valid_from], slots[self.history.valid_to]
        facts = [begin.offset, end.offset, end.validity_place, end.validity_bit]
        return np.array([*facts, layout.last_open_offset, layout.fixed_bytes], dtype=np.int64)


def _scale_of(stream: pa.Schema, time: str, history: History) -> TimeScale:
    """The scale of the time column; a `SpecError` when its times cannot be compared with the history's."""
    if time not in stream.names:
        raise unknown_choice("time column", time, stream.names)
    found, wanted = stream.field(time).type, history.schema.field(history.valid_from).type
    scale = TimeScale.of(found, time)
    if scale.kind != history.scale.kind:
        raise SpecError(
            f"time column {time!r} has type {found}, {history.valid_from!r} of the master data has {wanted}",
            code="time_type",
            next_move=f"cast {time!r} to {wanted}: instants and wall clocks are never compared on a guess",
            column=time,
            found=str(found),
            wanted=str(wanted),
        )
    return scale


def _free_names(columns: Sequence[str], taken: Sequence[str]) -> dict[str, str]:
    """Names for the columns in the join's output that the stream does not have."""
    names: dict[str, str] = {}
    for column in columns:
        name = column
        while name in taken or name in names.values():
            name = f"_{name}"
        names[column] = name
    return names


__all__ = ["AsOf"]
