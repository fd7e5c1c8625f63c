"""The bound: what counts towards it, and each contender's own."""

import pytest

from tidemill.lab.bound import AssemblySpeed, add_bounds
from tidemill.lab.device import DeviceCurve, measure_device
from tidemill.lab.join_data import JoinData

DEVICE = DeviceCurve({4096: 100e6, 1_048_576: 1e9})


def result(**facts: object) -> dict[str, object]:
    usual = {"rows_per_s": 1e5, "bytes_read": 1e9, "reads": 1e9 / 4096, "stream_rows": 1e6, "same_rows": True}
    return usual | facts


def test_the_bound_reads_the_fewest_bytes_at_the_best_speed() -> None:
    few, many = result(bytes_read=2e8, reads=200), result()
    add_bounds([few, many], 1e-9, DEVICE)
    assert few["bound_rows_per_s"] == many["bound_rows_per_s"] == pytest.approx(1e9 / 200)
    # 1,000 bytes a row in reads of 4 KiB come at 100 MB/s
    assert many["own_bound_rows_per_s"] == pytest.approx(1e8 / 1000)


def test_nobody_is_faster_than_assembling_the_output() -> None:
    without_reads = result(bytes_read=0, reads=0)
    add_bounds([without_reads], 1e-6, DEVICE)
    assert without_reads["bound_rows_per_s"] == without_reads["own_bound_rows_per_s"] == pytest.approx(1e6)


def test_wrong_rows_and_refusals_do_not_move_the_bound() -> None:
    wrong = result(bytes_read=0, reads=0, same_rows=False)
    refused = result(rows_per_s=None, bytes_read=None, reads=None, stream_rows=None, same_rows=None)
    right = result()
    add_bounds([wrong, refused, right], 1e-9, DEVICE)
    assert right["bound_rows_per_s"] == pytest.approx(1e9 / 1000)
    assert refused["own_bound_rows_per_s"] is None


def test_disk_and_assembly_are_measured(data: JoinData) -> None:
    curve = measure_device(data.parquet)
    assert min(curve.bytes_per_s) == 4096
    assert min(curve.bytes_per_s.values()) > 0
    assert 0 < AssemblySpeed(data).seconds_per_row(1.0, seed=1) < 1e-4


def test_all_ways_of_assembling_give_the_same_rows(data: JoinData) -> None:
    import numpy as np

    from tidemill.lab.streams import stream_batches

    (stream,) = stream_batches(data.rows, 0.0, 500, seed=3)
    keys = stream.column("key").to_numpy()
    positions = np.where(keys < data.rows, keys, -1)
    assert (positions < 0).any()
    first, *others = (way(stream, positions) for way in AssemblySpeed(data).ways.values())
    assert len(others) == 2
    assert all(other.equals(first) for other in others)
