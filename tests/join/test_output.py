"""What a join may be asked for, and what it says to the rest."""

import pyarrow as pa
import pytest

from tidemill.core.errors import SpecError
from tidemill.join.output import OutputPlan

STREAM = pa.schema([("row", pa.int64()), ("product", pa.int32()), ("price", pa.float64())])
MASTER = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("price", pa.float64())]
)


def plan(**changes: object) -> OutputPlan:
    asked = {"stream_key": "product", "master_key": "id", "columns": ["name"], **changes}
    return OutputPlan.of(STREAM, MASTER, **asked)


def test_stream_columns_come_first_then_renamed_master_columns_then_the_mark():
    chosen = plan(how="left", columns={"price": "list_price", "id": "id"}, matched_as="found")
    assert chosen.output_schema.names == ["row", "product", "price", "list_price", "id", "found"]
    assert chosen.output_schema.field("id").nullable
    assert not chosen.output_schema.field("found").nullable


def test_all_master_columns_but_the_key_when_none_are_named():
    schema = OutputPlan.of(STREAM.remove(2), MASTER, stream_key="product", master_key="id").output_schema
    assert schema.names == ["row", "product", "name", "price"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"how": "outer"}, "unknown_how"),
        ({"columns": ["nam"]}, "unknown_master_column"),
        ({"columns": None}, "column_twice"),
        ({"how": "semi"}, "columns_of_semi"),
        ({"how": "inner", "matched_as": "found"}, "matched_as"),
        ({"how": "left", "matched_as": "row"}, "column_twice"),
        ({"stream_key": "produkt"}, "unknown_stream_key_column"),
        ({"stream_key": "price"}, "key_type"),
    ],
)
def test_what_cannot_be_is_refused_with_its_code(changes: dict[str, object], code: str):
    with pytest.raises(SpecError) as refusal:
        plan(**changes)
    assert refusal.value.code == code
    assert refusal.value.next_move
