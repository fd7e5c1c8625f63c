"""A DataFrame as a source of master data: refused, or its columns in Arrow's types."""

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from tidemill.core.errors import SpecError
from tidemill.master.build import BuildOptions


def refuse_unfit(source: DataFrame, options: BuildOptions) -> None:
    """Stop before the start when no build from this DataFrame can be."""
    names = source.columns
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(
            f"the DataFrame has several columns {twice[0]!r}",
            code="column_twice",
            next_move="drop or rename all but one",
            column=twice[0],
        )
    if source.isStreaming:
        raise SpecError(
            "the DataFrame is a stream",
            code="streaming_source",
            next_move="build from a batch DataFrame, and let changes come by MasterData.apply",
        )
    if options.order_by is not None:
        raise SpecError(
            "pages in a given order are not built from a DataFrame",
            code="order_from_spark",
            next_move="write it as Parquet, then MasterData.build(that folder, order_by=...)",
        )


def arrow_schema(source: DataFrame) -> pa.Schema:
    """The columns in Arrow's types, timestamps in UTC."""
    return pa.schema([pa.field(field.name, _arrow_type(field)) for field in source.schema])


def _arrow_type(field: StructField) -> pa.DataType:
    """The type in Arrow; a `SpecError` when it would not come back from there as it went.

    So a text with a collation is refused: pages compare bytes.
    """
    told = field.dataType.simpleString()
    try:
        arrow = to_arrow_schema(
            StructType([field]), timezone="UTC", error_on_duplicated_field_names_in_struct=True
        )
        back = from_arrow_schema(arrow)[0].dataType.simpleString()
    except PySparkException:
        back = ""
    # Types that Arrow tells apart by notes on their fields alone, which pages do not keep.
    if back != told or any(word in told for word in ("variant", "geometry", "geography")):
        raise SpecError(
            f"column {field.name!r} has type {told}, which a page cannot hold",
            code="column_type",
            next_move="cast it, or leave it out",
            column=field.name,
        )
    kind: pa.DataType = arrow.field(0).type
    return kind


__all__ = ["arrow_schema", "refuse_unfit"]
