"""Weather-like data: few longitudes, crowded alike on both sides."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tidemill.lab.data.data_set import open_master
from tidemill.lab.data.weather import DOMAIN, WeatherData


def test_both_sets_have_the_papers_rows(tmp_path: Path) -> None:
    sets = {32: WeatherData.of_meshjoin(scale=1000), 128: WeatherData.of_moij(scale=1000)}
    for row_bytes, data in sets.items():
        master = open_master(data, tmp_path)
        assert master.rows == {32: 10_000, 128: 20_000}[row_bytes]
        assert np.diff(master.read_rows(0, 1).at)[0] == row_bytes
        batch = next(data.stream(tmp_path))
        assert batch.nbytes == pytest.approx(row_bytes * batch.num_rows, rel=0.05)
        longitudes = batch.column("longitude").to_numpy()
        assert 0 <= longitudes.min() <= longitudes.max() <= DOMAIN


def test_the_stream_asks_for_what_the_stations_reported(tmp_path: Path) -> None:
    data = WeatherData.of_moij(scale=500)
    master = open_master(data, tmp_path)
    in_master = np.concatenate([p.column("longitude").to_numpy() for p in master.scan()])
    asked = np.concatenate([b.column("longitude").to_numpy() for b in islice(data.stream(tmp_path), 5)])
    rows_of = np.bincount(in_master, minlength=DOMAIN + 1)
    found = rows_of[asked]
    assert (found > 0).mean() == pytest.approx(data.workload.matched_share, abs=0.02)
    assert found[found > 0].mean() == pytest.approx(data.workload.rows_per_key, rel=0.05)
    # Stations crowd: the busiest hundredth of the longitudes has several times its share.
    assert np.sort(rows_of)[::-1][: DOMAIN // 100].sum() > 5 * len(in_master) // 100


def test_distinct_keeps_one_row_a_longitude(tmp_path: Path) -> None:
    many, once = (open_master(WeatherData.of_moij(scale=500, distinct=d), tmp_path) for d in (False, True))
    assert once.manifest.most_rows_of_a_key == 1
    assert once.rows == many.manifest.distinct_keys
    assert WeatherData.of_moij(scale=500, distinct=True).workload.rows_per_key == pytest.approx(1)
