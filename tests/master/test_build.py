"""What a build accepts, refuses, stores, and leaves behind when it is killed."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.core.errors import SpecError, StoreError
from tidemill.master import MasterData


def products(rows: int = 3000) -> pa.Table:
    keys = np.random.default_rng(3).permutation(rows)
    return pa.table({"id": keys, "name": [f"product {key} " * 3 for key in keys], "price": keys * 0.5})


def everything(master: MasterData) -> list[dict[str, object]]:
    return [row for page in range(master.pages) for row in master.read_page(page).to_pylist()]


def test_rows_come_back_sorted_by_key_in_aligned_pages(tmp_path: Path):
    table = products()
    master = MasterData.build(table, key="id", path=tmp_path)
    assert everything(master) == sorted(table.to_pylist(), key=lambda row: row["id"])
    assert master.pages > 5
    assert master.index.offset.tolist() == [page * 4 for page in range(master.pages)]
    stored = (tmp_path / "versions/000001/pages.bin").read_bytes()
    used = [int.from_bytes(stored[at + 12 : at + 16], "little") for at in range(0, len(stored), 16 * 1024)]
    assert max(used) <= 16 * 1024
    assert np.mean(used[:-1]) > 0.98 * 16 * 1024


@pytest.mark.parametrize("source", ["table", "reader", "file", "folder", "files"])
def test_every_kind_of_source_gives_the_same_store(tmp_path: Path, source: str):
    table = products(500)
    folder = tmp_path / "parquet"
    folder.mkdir()
    pq.write_table(table.slice(0, 200), folder / "a.parquet")
    pq.write_table(table.slice(200), folder / "b.parquet")
    pq.write_table(table, tmp_path / "whole.parquet")
    sources = {
        "table": table,
        "reader": table.to_reader(max_chunksize=77),
        "file": tmp_path / "whole.parquet",
        "folder": str(folder),
        "files": [folder / "a.parquet", str(folder / "b.parquet")],
    }
    master = MasterData.build(sources[source], key="id", path=tmp_path / "store")
    assert everything(master) == sorted(table.to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"])
def test_integer_keys_of_every_width_are_stored_as_int64(tmp_path: Path, kind: str):
    table = pa.table({"id": pa.array([9, 100, 1], getattr(pa, kind)()), "n": [1, 2, 3]})
    master = MasterData.build(table, key="id", path=tmp_path)
    assert master.schema.field("id").type == pa.int64()
    assert [row["id"] for row in everything(master)] == [1, 9, 100]


def test_keys_of_64_bits_without_a_sign_keep_their_type(tmp_path: Path):
    table = pa.table({"id": pa.array([2**64 - 1, 0, 2**63], pa.uint64()), "n": [1, 2, 3]})
    master = MasterData.build(table, key="id", path=tmp_path)
    position, rows = master.lookup(pa.array([2**63, 5, 2**64 - 1], pa.uint64()))
    assert dict(zip(position.tolist(), rows.column("n").to_pylist(), strict=True)) == {0: 3, 2: 1}
    assert rows.schema.field("id").type == pa.uint64()


def test_equal_keys_keep_their_order_and_are_counted(tmp_path: Path):
    table = pa.table({"id": [7, 1, 7, 7, 1], "n": [0, 1, 2, 3, 4]})
    master = MasterData.build(table, key="id", path=tmp_path)
    assert [row["n"] for row in everything(master)] == [1, 4, 0, 2, 3]
    assert (master.manifest.distinct_keys, master.manifest.most_rows_of_a_key) == (2, 3)


def test_rows_of_a_key_are_found_wherever_a_page_or_a_piece_of_the_sort_ends(tmp_path: Path):
    """20 kB sort in pieces of some 50 rows, so keys of 40 rows begin in one piece and end in the next."""
    table = pa.table({"id": np.arange(4000) // 40, "pad": ["x" * 20] * 4000})
    master = MasterData.build(table, key="id", path=tmp_path, page_bytes=4096, memory="20 kB")
    # One by one: a lookup of all keys reads all pages and finds what the index hides.
    assert [master.lookup(np.array([key]))[1].num_rows for key in range(100)] == [40] * 100


def test_dictionary_and_view_columns_become_plain(tmp_path: Path):
    colours = pa.array(["red", "blue", "red"]).dictionary_encode()
    table = pa.table({"id": [1, 2, 3], "c": colours, "v": pa.array(["a", "b", "c"], pa.string_view())})
    master = MasterData.build(table, key="id", path=tmp_path)
    assert [(r["c"], r["v"]) for r in everything(master)] == [("red", "a"), ("blue", "b"), ("red", "c")]


def test_a_row_larger_than_a_page_gets_its_own(tmp_path: Path):
    table = pa.table({"id": [1, 2, 3], "text": ["a", "b" * 50_000, "c"]})
    master = MasterData.build(table, key="id", path=tmp_path)
    assert everything(master) == table.to_pylist()


def test_an_empty_table_is_master_data_too(tmp_path: Path):
    master = MasterData.build(products(0), key="id", path=tmp_path)
    assert (master.rows, master.pages) == (0, 0)
    assert master.lookup(np.array([1, 2]))[1].num_rows == 0


@pytest.mark.parametrize(
    ("table", "code", "says"),
    [
        (pa.table({"id": [1, None, None]}), "null_keys", "2 of 3 rows"),
        (pa.table({"id": [True]}), "key_type", "integers, strings"),
        (pa.table({"idd": [1]}), "unknown_key_column", "did you mean 'idd'"),
    ],
)
def test_keys_that_cannot_be_are_refused(tmp_path: Path, table: pa.Table, code: str, says: str):
    with pytest.raises(SpecError, match=says) as refusal:
        MasterData.build(table, key="id", path=tmp_path)
    assert refusal.value.code == code
    assert not (tmp_path / "CURRENT").exists()


@pytest.mark.parametrize("order_by", [None, "price"])
@pytest.mark.parametrize("knows_its_length", [True, False])
def test_progress_moves_while_rows_are_read_and_while_they_are_written(
    tmp_path: Path, order_by: str | None, knows_its_length: bool
):
    table, seen = products(1000), []
    source = table if knows_its_length else table.to_reader(max_chunksize=100)
    build = {"key": "id", "path": tmp_path, "order_by": order_by, "memory": "10 kB"}
    MasterData.build(source, **build, progress=lambda *p: seen.append(p))
    done = [rows for rows, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == (1000, 1000)
    assert len({rows for rows in done if rows > 500}) > 2, "the bar moves while rows are written"
    if knows_its_length:
        assert {total for _, total in seen} == {1000}
    else:
        assert len({rows for rows in done if rows <= 500}) > 5, "the bar moves while rows are read"


def test_a_killed_build_leaves_the_old_version_current(tmp_path: Path):
    MasterData.build(products(100), key="id", path=tmp_path)
    script = f"""
        import os, signal
        import pyarrow as pa
        from tidemill.master import MasterData
        rows = 1_000_000
        table = pa.table({{"id": range(rows), "name": ["n"] * rows}})
        MasterData.build(table, key="id", path={str(tmp_path)!r},
            progress=lambda done, total: os.kill(os.getpid(), signal.SIGKILL))
    """
    died = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert list((tmp_path / "versions").glob(".building*"))
    assert MasterData.open(tmp_path).rows == 100
    assert MasterData.build(products(200), key="id", path=tmp_path).version == 2
    assert sorted(entry.name for entry in (tmp_path / "versions").iterdir()) == ["000001", "000002"]


def test_a_version_that_was_built_but_not_switched_to_is_not_read(tmp_path: Path):
    MasterData.build(products(100), key="id", path=tmp_path)
    current = (tmp_path / "CURRENT").read_bytes()
    MasterData.build(products(300), key="id", path=tmp_path)
    (tmp_path / "CURRENT").write_bytes(current)  # as if the power had gone before the switch
    assert MasterData.open(tmp_path).rows == 100
    assert MasterData.build(products(400), key="id", path=tmp_path).version == 3


def test_a_second_builder_is_told_to_wait(tmp_path: Path):
    def build_inside(done: int, total: int) -> None:
        with pytest.raises(StoreError) as refusal:
            MasterData.build(products(10), key="id", path=tmp_path)
        assert (refusal.value.code, refusal.value.retryable) == ("build_running", True)

    MasterData.build(products(10), key="id", path=tmp_path, progress=build_inside)


def test_another_format_version_is_refused(tmp_path: Path):
    from tidemill.core.files import seal

    MasterData.build(products(10), key="id", path=tmp_path)
    (tmp_path / "CURRENT").write_text(json.dumps(seal({"format_version": 2, "version": 1})))
    with pytest.raises(StoreError, match="format version 2") as refusal:
        MasterData.open(tmp_path)
    assert refusal.value.code == "format_version"
