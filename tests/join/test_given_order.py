"""Joins on a store in order of popularity: the X-HYBRIDJOIN paper's set-up."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.join.streams import batch, join_on

from tidemill.join.drive import drive
from tidemill.join.x_hybrid import XHybridJoin
from tidemill.master import MasterData

KEYS = 3000


@pytest.fixture(scope="module")
def by_popularity(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    """Every third key twice; popularity has nothing to do with key order."""
    keys = np.array(sorted([*range(KEYS), *range(0, KEYS, 3)]))
    popularity = np.random.default_rng(4).permutation(KEYS)[keys]
    table = pa.table({"id": keys, "name": [f"name of {key}" for key in keys], "popularity": popularity})
    folder: Path = tmp_path_factory.mktemp("m")
    return MasterData.build(table, key="id", path=folder, order_by="popularity", page_bytes=4096)


@pytest.mark.parametrize("name", ["cache", "hybrid", "inl", "moij", "ssij", "tide", "x_hybrid"])
@pytest.mark.parametrize("memory_bytes", [120_000, 1_000_000])
def test_every_pair_leaves_once(name: str, memory_bytes: int, by_popularity: MasterData):
    assert by_popularity.pages > 10
    keys = np.random.default_rng(5).integers(-20, KEYS + 20, 4000)
    join = join_on(name, by_popularity, memory_bytes)
    found: Counter[tuple[int, str]] = Counter()
    for report in drive(join, [batch(keys[at : at + 500]) for at in range(0, len(keys), 500)]):
        for output in report.outputs:
            found.update(
                zip(output.column("key").to_pylist(), output.column("name").to_pylist(), strict=True)
            )
    expected: Counter[tuple[int, str]] = Counter()
    for key in keys.tolist():
        if 0 <= key < KEYS:
            expected[key, f"name of {key}"] += 2 if key % 3 == 0 else 1
    assert found == expected


def test_resident_pages_hold_the_popular_rows(by_popularity: MasterData):
    join = join_on("x_hybrid", by_popularity, 200_000)
    assert isinstance(join, XHybridJoin)
    popular = [
        key
        for page in by_popularity.read_pages(range(join.sizes.pages_per_step))
        for key in page.column("id").to_pylist()
    ]
    reports = list(drive(join, [batch(popular)] * 3))
    assert sum(report.hot_hits for report in reports) == 3 * len(popular)
    assert sum(report.pages_read for report in reports) == join.sizes.pages_per_step
