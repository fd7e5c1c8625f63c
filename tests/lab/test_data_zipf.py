"""Synthetic data: shares of keys on both sides, order of pages, sizes of rows."""

from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tidemill.lab.data.data_set import open_master
from tidemill.lab.data.zipf import ZipfData

ROWS = 5_000


def stream_keys(data: ZipfData, batches: int = 20) -> npt.NDArray[np.int64]:
    return np.concatenate([batch.column("key").to_numpy() for batch in islice(data.stream(Path()), batches)])


def test_the_stream_follows_zipf_and_its_popular_keys_are_no_neighbours() -> None:
    keys = stream_keys(ZipfData(master_rows=1000, exponent=1.0))
    shares = np.sort(np.bincount(keys, minlength=1000))[::-1] / len(keys)
    harmonic = (1 / np.arange(1, 1001)).sum()
    assert shares[0] == pytest.approx(1 / harmonic, rel=0.02)
    assert shares[:100].sum() == pytest.approx((1 / np.arange(1, 101)).sum() / harmonic, rel=0.02)
    popular = np.argsort(np.bincount(keys, minlength=1000))[::-1][:10]
    assert np.ptp(popular) > 300


def test_seeds_repeat_and_differ() -> None:
    first, same, other = (stream_keys(ZipfData(master_rows=1000, exponent=1.0, seed=s), 2) for s in (1, 1, 2))
    assert (first == same).all()
    assert (first != other).any()


def test_pages_lie_in_order_of_popularity(tmp_path: Path) -> None:
    data = ZipfData(master_rows=ROWS, exponent=1.0, order="popularity")
    master = open_master(data, tmp_path)
    first_page = master.read_page(0).column("key").to_numpy()
    hits = np.isin(stream_keys(data), first_page).mean()
    assert master.page_order == "given"
    assert hits == pytest.approx((1 / np.arange(1, len(first_page) + 1)).sum() / 9.094, abs=0.01)
    in_key_order = ZipfData(master_rows=ROWS, exponent=1.0)
    first_keys = open_master(in_key_order, tmp_path).read_page(0).column("key").to_numpy()
    assert first_keys.tolist() == list(range(len(first_keys)))


def test_hot_values_of_both_sides_meet_unless_shuffled() -> None:
    aligned, shuffled = (
        ZipfData(master_rows=ROWS, exponent=0.5, keys=ROWS, master_exponent=0.5, shuffled=s).workload
        for s in (False, True)
    )
    assert aligned.rows_per_key > 1.5 * shuffled.rows_per_key
    assert aligned.matched_share > shuffled.matched_share


def test_a_workload_states_what_the_join_finds(tmp_path: Path) -> None:
    data = ZipfData(master_rows=ROWS, exponent=1.0, keys=2000, master_exponent=1.0, unknown_share=0.1)
    master = open_master(data, tmp_path)
    rows_of_key = np.bincount(
        np.concatenate([p.column("key").to_numpy() for p in master.scan()]), minlength=4000
    )
    found = rows_of_key[stream_keys(data, 30)]
    assert (found > 0).mean() == pytest.approx(data.workload.matched_share, abs=0.01)
    assert found[found > 0].mean() == pytest.approx(data.workload.rows_per_key, rel=0.03)


def test_rows_have_the_size_asked_for_and_a_store_is_kept(tmp_path: Path) -> None:
    data = ZipfData(master_rows=ROWS, exponent=1.0, master_row_bytes=120, stream_row_bytes=20)
    master = open_master(data, tmp_path)
    rows = master.read_rows(0, 1)
    assert np.diff(rows.at).tolist()[:3] == [120, 120, 120]
    assert next(data.stream(tmp_path)).nbytes == 20 * 10_000
    assert open_master(data, tmp_path).identity == master.identity
    assert len(list(tmp_path.iterdir())) == 1


def test_bursty_batches_bring_the_same_rows_unevenly() -> None:
    even, bursty = (ZipfData(master_rows=1000, exponent=1.0, bursty=b) for b in (False, True))
    sizes = [batch.num_rows for batch in islice(bursty.stream(Path()), 200)]
    assert max(sizes) > 10 * np.median(sizes)
    taken = stream_keys(bursty, 50)
    assert (taken == stream_keys(even, -(-len(taken) // 10_000))[: len(taken)]).all()
