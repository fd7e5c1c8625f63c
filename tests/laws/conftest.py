"""Small masters of every awkward shape, built once; rows are wide, so that pages hold two or three."""

from pathlib import Path

import pyarrow as pa
import pytest
from tests.laws.late_putter import LatePutter

from tidemill.join.catalog import JOINS
from tidemill.master import MasterData

SHAPES: dict[str, list[int]] = {
    "empty": [],
    "one row": [5],
    "unique": list(range(0, 40, 2)),
    "duplicates across pages": [1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 7, 7, 8, 9, 9, 9, 9, 9, 9, 20],
    "one key": [4] * 25,
    "far apart": [-(2**63), -9, -8, 0, 6, 2**40, 2**63 - 1],
    "short": [-(2**30), -9, -9, *range(-7, 40), 40, 40, 40, 2**30],
    "equally long": [-(2**30), *range(0, 600, 2)],
    "packed": [1, 1, 2, 3, 3, 3, 3, 3, 7, 8, 9, 9, 9, 20, *range(22, 80, 2)],
}


# Where output may be put together on another core it is tried three times: alone, with even single rows handed over, and
# with those handed over to the slowest core there can be. The default is tried once more.
HANDS_OVER, TO_A_SLOW_ONE = 1, 2
NAMES = [
    *((name, 0) for name in [*sorted(JOINS), "tide"]),
    *((name, how) for name in ("moij", "tide") for how in (HANDS_OVER, TO_A_SLOW_ONE)),
]
IDS = [name + "+" * [other for other, _ in NAMES[:at]].count(name) for at, (name, _) in enumerate(NAMES)]
NARROW = pa.schema([("row", pa.int64()), ("key", pa.int64()), ("note", pa.int32())])
"""Rows of a stream that the other core can put together."""


@pytest.fixture(params=NAMES, ids=IDS)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A join of the catalog; it may hand rows over to another core."""
    name, hands_over = request.param
    if hands_over:
        monkeypatch.setattr("tidemill.join.parts.aside._WORTH_ROWS", 1)
        monkeypatch.setattr("tidemill.join.parts.region_join._ENOUGH_ROWS", 1)
    if hands_over == TO_A_SLOW_ONE:
        for user in ("moij", "parts.region_join"):
            monkeypatch.setattr(f"tidemill.join.{user}.Putter", LatePutter)
    if hands_over == TO_A_SLOW_ONE or (hands_over and name == "moij"):
        for laws in ("join_laws", "ordered_law"):
            monkeypatch.setattr(f"tests.laws.test_{laws}.STREAM", NARROW)
    return str(name)


@pytest.fixture(scope="session")
def masters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MasterData]:
    folder: Path = tmp_path_factory.mktemp("masters")
    return {
        shape: MasterData.build(
            _table(keys, has_nulls=shape not in ("short", "equally long"), are_equal=shape == "equally long"),
            key="id",
            path=folder / str(n),
            page_bytes=4096,
            pack=shape in ("packed", "short", "equally long"),
        )
        for n, (shape, keys) in enumerate(SHAPES.items())
    }


def _table(keys: list[int], *, has_nulls: bool, are_equal: bool = False) -> pa.Table:
    digits = 4 if are_equal else 1  # names of equal length are packed to their digits
    names = [
        None if has_nulls and n % 5 == 4 else f"row {n:0{digits}} " + "x" * 1300 for n in range(len(keys))
    ]
    # As columns four times as long as packed.
    kinds = [None if has_nulls and n % 6 == 5 else f"kind {n % 3} " + "y" * 240 for n in range(len(keys))]
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "name": pa.array(names, pa.string()),
            "n": range(len(keys)),
            "kind": pa.array(kinds, pa.string()),
        }
    )
