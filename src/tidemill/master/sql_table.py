"""A table as it is described before it is read: its columns, its key, and the few queries that all reading is made of."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemill.core.errors import SpecError, unknown_choice
from tidemill.core.units import format_count
from tidemill.master.keys import CODE_COLUMN, KeyForm
from tidemill.master.sql_engine import Column, Engine, SqlType, quoted, quoted_table

SIZE = "_size"
DIGEST = "_digest"


@dataclass(frozen=True)
class Table:
    """What is read of a table, checked: known columns, a key with an index, no NULL keys, no inexact values."""

    engine: Engine
    name: str
    columns: tuple[Column, ...]
    key: tuple[Column, ...]

    @classmethod
    def described(
        cls, engine: Engine, name: str, key: Sequence[str], columns: Sequence[str] | None
    ) -> "Table":
        found = {column.name: column for column in engine.columns(name)}
        if not found:
            raise unknown_choice("table", name, engine.tables())
        wanted = list(found) if columns is None else [*key, *(c for c in columns if c not in key)]
        for column in (*wanted, *key):
            if column not in found:
                raise unknown_choice("column", column, list(found))
        chosen = tuple(found[column] for column in found if column in wanted)
        table = cls(engine, name, chosen, tuple(found[column] for column in key))
        table._refuse_types(list(found))
        table._refuse_no_index()
        return table

    @property
    def schema(self) -> pa.Schema:
        """Columns as pages hold them; a single integer key as int64, since it is its own code."""
        key_names = [column.name for column in self.key]
        is_own_code = len(key_names) == 1 and pa.types.is_integer(_form(self.key[0]).arrow)
        return pa.schema(
            [
                pa.field(
                    column.name,
                    pa.int64() if is_own_code and column.name in key_names else _form(column).arrow,
                    nullable=column.nullable and column.name not in key_names,
                )
                for column in self.columns
            ]
        )

    @property
    def wire(self) -> pa.Schema:
        """What the engine gives for `ranges` and `lookups`."""
        return pa.schema([(column.name, _form(column).wire) for column in self.columns])

    @property
    def survey_wire(self) -> pa.Schema:
        keys = [(column.name, _form(column).wire) for column in self.key]
        return pa.schema([*keys, (SIZE, pa.int64()), (DIGEST, self.engine.digest_of(self.columns)[1])])

    def survey(self) -> str:
        """Keys of all rows in order, with the open-length bytes and a digest of each row."""
        sizes = [
            f"coalesce({column.sql(length)}, 0)"
            for column in self.columns
            if (length := _form(column).open_bytes)
        ]
        size = f"CAST({' + '.join(sizes) or '0'} AS BIGINT) AS {quoted(SIZE)}"
        digest = f"{self.engine.digest_of(self.columns)[0]} AS {quoted(DIGEST)}"
        return f"SELECT {self._read(self.key)}, {size}, {digest} FROM {self._source} ORDER BY {self._order}"  # noqa: S608 (quoted)

    def ranges(self) -> str:
        """Rows between two keys, both included: the parameters are the columns of the first, then of the second."""
        width = len(self.key)
        first = [self._bound(column, number) for number, column in enumerate(self.key, 1)]
        last = [self._bound(column, number) for number, column in enumerate(self.key, width + 1)]
        columns = [_compared(column) for column in self.key]
        if self.engine.has_row_values:
            row, low, high = (f"({', '.join(parts)})" for parts in (columns, first, last))
            where = f"{row} >= {low} AND {row} <= {high}"
        else:
            # Said of the first column too: by it other rows are skipped.
            where = f"{columns[0]} >= {first[0]} AND {columns[0]} <= {last[0]}"
            if width > 1:
                where += f" AND {_beyond(columns, first, '>')} AND {_beyond(columns, last, '<')}"
        return f"SELECT {self._read(self.columns)} FROM {self._source} WHERE {where} ORDER BY {self._order}"  # noqa: S608 (quoted)

    def lookups(self) -> str:
        """Rows of the keys in a relation `asked`, which the engine puts in."""
        equal = " AND ".join(
            f"{_compared(column)} = {_form(column).bound_as.format(f'asked.{quoted(column.name)}')}"
            for column in self.key
        )
        return f"SELECT {self._read(self.columns)} FROM {{asked}} JOIN {self._source} ON {equal}"  # noqa: S608 (quoted)

    def refuse_bad_rows(self) -> None:
        """Stop when rows have NULL in the key, or values that Arrow cannot hold exactly: counted in one pass."""
        conditions = {
            column.name: column.sql(where)
            for column in self.columns
            if (where := _form(column).refused_where)
        }
        nullable = [column.sql("{} IS NULL") for column in self.key]
        counted = [" OR ".join(nullable), *conditions.values()]
        names = [f"_{number}" for number in range(len(counted))]
        sums = (f"sum(CASE WHEN {c} THEN 1 ELSE 0 END)" for c in counted)
        casts = ", ".join(f"CAST({s} AS BIGINT) AS {quoted(n)}" for s, n in zip(sums, names, strict=True))
        counts = f"SELECT {casts}, count(*) AS {quoted('_rows')} FROM {self._source}"  # noqa: S608 (quoted)
        found = self.engine.one_row(counts, [*names, "_rows"])
        if found["_0"]:
            raise SpecError(
                f"{format_count(found['_0'])} of {format_count(found['_rows'])} rows of {self.name} have NULL in key "
                f"{', '.join(repr(column.name) for column in self.key)}",
                code="null_keys",
                next_move="leave those rows out: a NULL key never matches",
                key=[column.name for column in self.key],
                null_keys=found["_0"],
            )
        for column, name in zip(conditions, names[1:], strict=True):
            if found[name]:
                raise SpecError(
                    f"{format_count(found[name])} values of {self.name}.{column} have no exact Arrow form",
                    code="inexact_values",
                    next_move=f"repair them (find them by: {conditions[column]}), or leave the column out by columns=",
                    column=column,
                    values=found[name],
                )

    def _refuse_types(self, names: list[str]) -> None:
        for column in self.columns:
            if column.form is None:
                raise SpecError(
                    f"column {column.name!r} of {self.name} has type {column.sql_type!r}, which has no exact Arrow form here",
                    code="column_type",
                    next_move=f"leave it out by columns=, or cast it in the table; its columns are {names}",
                    column=column.name,
                    found=column.sql_type,
                )
        taken = {CODE_COLUMN} & {column.name for column in self.columns}
        taken |= {SIZE, DIGEST} & {column.name for column in self.key}
        if taken:
            raise SpecError(
                f"{self.name} has columns {sorted(taken)}, names that Tidemill needs for its own",
                code="column_twice",
                next_move="leave them out by columns=, or rename them",
            )
        for column in self.key:
            if not _form(column).is_key:
                raise SpecError(
                    f"key column {column.name!r} of {self.name} has type {column.sql_type!r} in {self.engine.name}, "
                    "which tells keys apart otherwise than Tidemill does",
                    code="key_type",
                    next_move="give a key of integers, texts in the order of their bytes, bytes, decimals or dates",
                    key=column.name,
                    found=column.sql_type,
                )
        KeyForm.choose(self.schema, [column.name for column in self.key])

    def _refuse_no_index(self) -> None:
        names = [column.name for column in self.key]
        if any(index[: len(names)] == names for index in self.engine.indexes(self.name)):
            return
        compared = ", ".join(_form(column).compared_as.format(quoted(column.name)) for column in self.key)
        statement = f"CREATE INDEX ON {quoted_table(self.name)} ({compared})"
        if self.engine.name != "PostgreSQL":  # the only one of the three that finds a name by itself
            statement = statement.replace("INDEX ON", f"INDEX {quoted('_'.join(['by', *names]))} ON")
        raise SpecError(
            f"{self.name} has no index that begins with {names}: each read would pass over the whole table",
            code="no_index",
            next_move=f"{statement}",
            key=names,
            statement=statement,
        )

    @property
    def _source(self) -> str:
        return f"{quoted_table(self.name)} AS t"

    @property
    def _order(self) -> str:
        return ", ".join(_compared(column) for column in self.key)

    def _read(self, columns: Sequence[Column]) -> str:
        return ", ".join(
            f"{column.sql(_form(column).read_as)} AS {quoted(column.name)}" for column in columns
        )

    def _bound(self, column: Column, number: int) -> str:
        return _form(column).bound_as.format(self.engine.placeholder.format(number))


def _beyond(columns: Sequence[str], values: Sequence[str], sign: str) -> str:
    """Rows at the values or beyond, column by column.

    >>> _beyond(["a", "b"], ["$1", "$2"], ">")
    '(a > $1 OR (a = $1 AND b >= $2))'
    """
    (column, *columns), (value, *values) = columns, values
    if not columns:
        return f"{column} {sign}= {value}"
    return f"({column} {sign} {value} OR ({column} = {value} AND {_beyond(columns, values, sign)}))"


def _compared(column: Column) -> str:
    return column.sql(_form(column).compared_as)


def _form(column: Column) -> SqlType:
    assert column.form is not None  # refused when the table was described
    return column.form


__all__ = ["DIGEST", "SIZE", "Table"]
