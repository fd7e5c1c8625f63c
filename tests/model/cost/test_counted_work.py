"""Predicted work beside work that the joins themselves did, counted in virtual time."""

from pathlib import Path

import pytest

from tidemill.lab.virtual import run_virtual
from tidemill.model.catalog import model_of
from tidemill.model.work import COSTS_OF_2008
from tidemill.model.workload import Workload


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("virtual")


@pytest.mark.parametrize(
    ("name", "zipf"),
    [
        ("mesh", 0.5),
        ("adaptive_mesh", 0.0),
        ("reduced_mesh", 1.0),
        ("balanced", 0.0),
        ("balanced", 1.0),
        ("inl", 1.0),
    ],
)
def test_the_rate_is_within_a_tenth(folder: Path, name: str, zipf: float):
    workload = Workload(
        master_rows=60_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=zipf, page_bytes=8192
    )
    run = run_virtual(
        name, workload, memory_bytes=1_000_000, folder=folder, stream_rows=2000 if name == "inl" else None
    )
    state = model_of(name).steady_state(run.workload, run.sizes)
    assert state.rows_per_s(COSTS_OF_2008) == pytest.approx(run.state.rows_per_s(COSTS_OF_2008), rel=0.1)
    assert state.work_per_row.reads == pytest.approx(run.state.work_per_row.reads, rel=0.1)
    assert state.hit_share == pytest.approx(run.state.hit_share, abs=0.03)
