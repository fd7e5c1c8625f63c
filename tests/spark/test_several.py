"""One memory for several lookups: it goes where it saves most."""

from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.join.output import OutputPlan
from tidemill.master import MasterData
from tidemill.spark.auto import Wish
from tidemill.spark.lookup import HostedLookup
from tidemill.spark.refresh import Refresh
from tidemill.spark.several import by_gain, divided_by_gain

STREAM = pa.schema([("key", pa.int64()), ("pieces", pa.int32())])


def master_of(path: Path, rows: int, width: int) -> MasterData:
    table = pa.table({"key": range(rows), "text": ["x" * width] * rows})
    MasterData.build(table, key="key", path=path)
    return MasterData.open(path)


def lookup_on(master: MasterData, algorithm: str = "tide") -> HostedLookup:
    plan = OutputPlan.of(STREAM, master.schema, stream_key="key", master_key=master.key, how="left")
    return HostedLookup(
        name=master.path.name, master_path=master.path, version=1, refresh=Refresh.parse("batch"), plan=plan, as_of=None,
        condition=None, algorithm=algorithm, why="", memory_bytes=0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> list[MasterData]:
    folder = tmp_path_factory.mktemp("several")
    return [master_of(folder / "small", 2_000, 20), master_of(folder / "big", 60_000, 80)]


def test_a_table_that_is_in_memory_already_gets_no_more(masters: list[MasterData]):
    total = 24_000_000
    wish = Wish.of(memory=total, algorithm="tide", rate=None, zipf=0)
    small, big = divided_by_gain([lookup_on(master) for master in masters], masters, wish, 2)
    assert small + big <= total
    assert big > 2 * small


def test_without_a_model_memory_goes_by_size(masters: list[MasterData]):
    wish = Wish.of(memory=12_000_000, algorithm="mesh", rate=None, zipf=None)
    small, big = divided_by_gain([lookup_on(master, "mesh") for master in masters], masters, wish, 2)
    assert 0.9 < (small + big) / 12_000_000 <= 1
    assert small > 0.04 * 12_000_000, "even a small table needs its buffers"


def test_equal_tables_share_evenly_and_too_little_is_nobodys():
    def cost(size: int) -> float:
        return 1e6 / size if size >= 1_000_000 else float("inf")

    assert by_gain([cost, cost], 24_000_000) == [12_000_000, 12_000_000]
    assert by_gain([cost, cost], 1_500_000) is None
