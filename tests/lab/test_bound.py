"""The bound: what counts towards it, and each contender's own."""

import time

import numpy as np
import pyarrow as pa
import pytest

from tidemill.lab.assembly import Assembly, Located, Way, assembled
from tidemill.lab.bound import add_bounds
from tidemill.lab.bound_cell import ASSEMBLY, quickest
from tidemill.lab.device import DeviceCurve, measure_device
from tidemill.lab.join_cell import CellSpec
from tidemill.lab.join_data import JoinData
from tidemill.lab.measure import measure
from tidemill.lab.streams import STREAM_SCHEMA, Stream, endless, stream_batches
from tidemill.lab.verify import Judge

DEVICE = DeviceCurve({4096: 100e6, 1_048_576: 1e9})


def result(**facts: object) -> dict[str, object]:
    usual = {"rows_per_s": 1e5, "bytes_read": 1e9, "reads": 1e9 / 4096, "stream_rows": 1e6, "same_rows": True}
    return usual | facts


def assembly(rows_per_s: float, **facts: object) -> dict[str, object]:
    usual = {"rows_per_s": rows_per_s, "same_rows": True, "way": "one_call", "piece_rows": 10_000}
    return usual | {"cached_rows_per_s": 2 * rows_per_s} | facts


def test_the_bound_reads_the_fewest_bytes_at_the_best_speed() -> None:
    few, many = result(bytes_read=2e8, reads=200), result()
    add_bounds([few, many], [assembly(1e9)], DEVICE)
    assert few["bound_rows_per_s"] == many["bound_rows_per_s"] == pytest.approx(1e9 / 200)
    # 1,000 bytes a row in reads of 4 KiB come at 100 MB/s
    assert many["own_bound_rows_per_s"] == pytest.approx(1e8 / 1000)


def test_nobody_is_faster_than_assembling_the_output() -> None:
    without_reads = result(bytes_read=0, reads=0)
    add_bounds([without_reads], [assembly(1e6)], DEVICE)
    assert without_reads["bound_rows_per_s"] == without_reads["own_bound_rows_per_s"] == pytest.approx(1e6)


def test_wrong_rows_and_refusals_do_not_move_the_bound() -> None:
    wrong = result(bytes_read=0, reads=0, same_rows=False)
    refused = result(rows_per_s=None, bytes_read=None, reads=None, stream_rows=None, same_rows=None)
    right = result()
    add_bounds([wrong, refused, right], [assembly(1e9)], DEVICE)
    assert right["bound_rows_per_s"] == pytest.approx(1e9 / 1000)
    assert refused["own_bound_rows_per_s"] is None


def test_the_median_of_the_runs_stands_with_its_own_facts() -> None:
    only = result(bytes_read=0, reads=0)
    runs = [assembly(3e6), assembly(1e6), assembly(2e6, way="row_decode", cached_rows_per_s=5e6)]
    add_bounds([only], runs, DEVICE)
    assert only["bound_rows_per_s"] == only["assembly_rows_per_s"] == pytest.approx(2e6)
    assert only["assembly_rows_per_s_of_runs"] == [3e6, 1e6, 2e6]
    assert only["assembly_way"] == "row_decode"
    assert only["cached_assembly_rows_per_s"] == 5e6


@pytest.mark.parametrize("bad", [{"rows_per_s": None}, {"same_rows": False}])
def test_without_a_speed_of_assembling_there_is_no_bound(bad: dict[str, object]) -> None:
    only = result()
    add_bounds([only], [assembly(1e6), assembly(1e6) | bad], DEVICE)
    assert only["bound_rows_per_s"] is only["own_bound_rows_per_s"] is only["assembly_rows_per_s"] is None


def test_the_disk_is_measured(data: JoinData) -> None:
    curve = measure_device(data.parquet)
    assert min(curve.bytes_per_s) == 4096
    assert min(curve.bytes_per_s.values()) > 0


@pytest.fixture(scope="module")
def in_memory(data: JoinData) -> Assembly:
    return Assembly(data)


def test_all_ways_of_assembling_give_the_rows_of_the_join(data: JoinData, in_memory: Assembly) -> None:
    stream = list(stream_batches(data.rows, 0.0, 25_000, seed=3))
    judge, located = Judge(data), in_memory.locate(stream)
    assert any((positions < 0).any() for _, positions in located)
    assert len(in_memory.ways) == 6
    for way in in_memory.ways:
        outputs = [output for (output,) in assembled(way, located)]
        assert max(output.num_rows for output in outputs) <= way.piece_rows
        assert judge.same_rows(outputs, stream), way.name


def test_rows_that_do_not_fit_have_others_in_their_place(
    data: JoinData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.lab.assembly.MOST_ROWS_IN_MEMORY", 1000)
    few = Assembly(data)
    stream = pa.record_batch(
        [pa.array([999, 1001, data.rows]), pa.array([0, 1, 2]), pa.array([1, 1, 1], pa.int32())],
        schema=STREAM_SCHEMA,
    )
    ((_, positions),) = few.locate([stream])
    assert positions.tolist() == [999, 1, -1]
    outputs = [next(assembled(way, few.locate([stream])))[0] for way in few.ways]
    assert all(output.equals(outputs[0]) for output in outputs)


def test_the_quickest_way_runs_and_every_way_had_its_trials(data: JoinData) -> None:
    """Ways that take their time, and a stream that must go on from trial to trial."""
    tried: list[tuple[str, int]] = []

    def way(name: str, seconds: float) -> Way:
        def assemble(batch: pa.RecordBatch, _: object) -> pa.RecordBatch:
            tried.append((name, batch.column("event")[0].as_py()))
            time.sleep(seconds)
            return batch

        return Way(name, 100, assemble)

    (batch,) = stream_batches(data.rows, 0.0, 600, seed=3)
    stream = [Located(batch.slice(at, 100), np.zeros(100, np.int64)) for at in range(0, 600, 100)]
    spec = CellSpec("assembly", 0.0, 0.1, data.rows, 100, 1.0, str(data.folder), seed=3)
    ways = [way("slow", 0.03), way("quick", 0.001), way("slower", 0.05)]
    assert quickest(ways, endless(stream), spec).name == "quick"
    names = ["slow", "quick", "slower"] * 2
    assert tried == list(zip(names, range(0, 600, 100), strict=True))


def test_the_cell_runs_over_the_rows_of_the_stream_itself(data: JoinData) -> None:
    spec = CellSpec(ASSEMBLY, 1.0, 0.1, data.rows, None, 0.3, str(data.folder), seed=5)
    Stream(data.folder, data.rows, 1.0, 5, rows=2000).build(lambda _text, _share: None)
    # As many rows as a real one would take seconds to draw; the name says nothing to the cell.
    Stream(data.folder, data.rows, 1.0, 5, rows=2000).path.rename(spec.stream.path)
    found = measure(spec)
    spec.stream.path.unlink()
    assert not found["failed"], found["reason"]
    assert found["same_rows"]
    assert found["verified_rows"] >= 20_000
    # 2,000 rows around and around until the seconds are up: a piece is never more than the stream has
    assert found["stream_rows"] % 2000 == 0
    assert found["stream_rows"] > 10_000
    assert found["seconds"] >= 0.3
    assert found["rows_per_s"] == pytest.approx(found["stream_rows"] / found["seconds"])
    assert found["way"] in {"arrow_take", "row_decode", "one_call"}
    assert found["cached_rows_per_s"] > 0
