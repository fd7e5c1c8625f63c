"""TPC-H through its generator, or a clear word where that is missing."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tidemill.core.errors import SpecError
from tidemill.lab.data import tpch
from tidemill.lab.data.data_set import open_master
from tidemill.lab.data.tpch import TpchData

SCALE = 0.01


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        tpch.generator()
    except SpecError as missing:
        pytest.skip(str(missing))
    return tmp_path_factory.mktemp("tpch")


def test_every_order_line_finds_four_offers(folder: Path) -> None:
    data = TpchData(scale_factor=SCALE)
    master = open_master(data, folder)
    lines = list(islice(data.stream(folder), 8))
    asked = np.concatenate([batch.column("part").to_numpy() for batch in lines])
    rows_of = np.bincount(np.concatenate([p.column("part").to_numpy() for p in master.scan()]))
    assert master.rows == data.workload.master_rows == 8000
    assert (rows_of[asked] == 4).all()
    assert master.row_bytes == pytest.approx(tpch.MASTER_ROW_BYTES, rel=0.02)
    assert sum(b.nbytes for b in lines) / len(asked) == pytest.approx(tpch.STREAM_ROW_BYTES, rel=0.02)


def test_the_stream_begins_again_where_the_lines_end(folder: Path) -> None:
    data = TpchData(scale_factor=SCALE)
    rows = 0
    for batch in data.stream(folder):
        rows += batch.num_rows
        if rows > 65_000:
            break
    assert rows > 60_175, "SF 0.01 has 60,175 order lines"


def test_distinct_keeps_one_offer_a_part(folder: Path) -> None:
    data = TpchData(scale_factor=SCALE, distinct=True)
    master = open_master(data, folder)
    assert master.rows == data.workload.master_rows == 2000
    assert master.manifest.most_rows_of_a_key == 1


def test_a_missing_generator_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpch.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(tpch.shutil, "which", lambda _: None)
    with pytest.raises(SpecError, match="pip install tpchgen-cli") as refusal:
        next(TpchData(scale_factor=SCALE).stream(tmp_path))
    assert refusal.value.code == "no_tpch_generator"
