"""What a store says about itself, and how soon."""

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.errors import StoreError
from tidemill.core.files import read_sealed, write_sealed
from tidemill.master import MasterData, layout, page_writer
from tidemill.master.index import PageIndex
from tidemill.master.keys import KeyForm
from tidemill.master.layout import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    Manifest,
    PageFile,
    schema_as_text,
    switch_current,
    version_folder,
)
from tidemill.master.page_kernels import DENSE, LINED

PAGES = 400_000


def test_the_manifest_tells_counts_sizes_and_the_key(tmp_path: Path):
    table = pa.table({"s": pa.array([1, 1, 2, 1], pa.int8()), "k": ["a", "a", "a", "b"], "n": [0, 1, 2, 3]})
    master = MasterData.build(table, key=("s", "k"), path=tmp_path)
    told = Manifest.read(version_folder(tmp_path, 1))
    assert told == master.manifest
    assert (told.rows, told.distinct_keys, told.most_rows_of_a_key) == (4, 3, 2)
    assert told.mean_rows_of_a_key == pytest.approx(4 / 3)
    assert (told.key_columns, told.key_types) == (["s", "k"], ["int64", "string"])
    assert (told.code_kind, told.page_order, told.format_version) == ("hash64", "key", FORMAT_VERSION)
    assert told.schema.names == ["s", "k", "n", "_code"]
    assert 3 * 8 + 5 <= told.row_bytes <= 3 * 8 + 6, "three numbers, and a letter with its offset"


def kinds_of(master: MasterData) -> list[int]:
    """Of all pages that a version uses."""
    files = [np.fromfile(master.path / file.name, dtype=np.uint64) for file in master.manifest.files]
    heads = zip(master.index.file.tolist(), master.index.offset.tolist(), strict=True)
    return [int(files[file][offset * 512 + 1]) >> 32 & 7 for file, offset in heads]


def test_a_store_of_format_5_is_read_and_gets_dense_pages_beside_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    numbers = np.arange(9_000)
    with monkeypatch.context() as patch:
        patch.setattr(page_writer, "kind_for", lambda _: 0)
        MasterData.build(
            pa.table({"id": numbers, "n": numbers % 7}), key="id", path=tmp_path, page_bytes=4096
        )
    for file in (version_folder(tmp_path, 1) / MANIFEST_FILE, tmp_path / "CURRENT"):
        write_sealed(file, {**read_sealed(file), "format_version": 5})
    old = MasterData.open(tmp_path)
    assert old.manifest.format_version == 5
    assert set(kinds_of(old)) == {0}
    assert old.read_batch(range(old.pages)).column("n").to_pylist() == (numbers % 7).tolist()
    new = old.apply(pa.table({"id": [4_000], "n": [-1], "_op": ["update"]}))
    expected = (numbers % 7).tolist()
    expected[4_000] = -1
    assert new.manifest.format_version == FORMAT_VERSION
    assert sorted(set(kinds_of(new))) == [0, LINED | DENSE]
    assert new.read_batch(range(new.pages)).column("n").to_pylist() == expected
    assert new.lookup(pa.array([3_999, 4_000]))[1].column("n").to_pylist() == [3_999 % 7, -1]
    whole = new.compact()
    assert set(kinds_of(whole)) == {LINED | DENSE}
    assert whole.pages < old.pages
    assert whole.read_batch(range(whole.pages)).column("n").to_pylist() == expected
    monkeypatch.setattr(layout, "READABLE_FORMATS", (3, 4, 5))
    with pytest.raises(StoreError, match=f"has format version {FORMAT_VERSION}") as refusal:
        MasterData.open(tmp_path)
    assert refusal.value.code == "format_version"


def test_a_store_of_a_hundred_million_rows_opens_at_once(tmp_path: Path):
    """400,000 pages of 250 rows: a made-up index above a pages file that is one hole."""
    path = huge_store(tmp_path)
    began = time.perf_counter()
    master = MasterData.open(path)
    seconds = time.perf_counter() - began
    assert seconds < 0.5
    assert (master.rows, master.pages) == (PAGES * 250, PAGES)
    keys = np.random.default_rng(1).integers(0, PAGES * 250, 10_000)
    first, count = master.locate(keys)
    assert (first == keys // 250).all()
    assert (count == 1).all()
    with pytest.raises(StoreError, match="page 399999"):
        master.read_page(PAGES - 1)


def huge_store(path: Path) -> Path:
    folder = version_folder(path, 1)
    folder.mkdir(parents=True)
    pages = np.arange(PAGES)
    index = PageIndex.of(
        pages * 250,
        offset=pages * 4,
        file=np.zeros(PAGES),
        blocks=np.full(PAGES, 4),
        continues=np.zeros(PAGES, dtype=np.bool_),
        last_code=PAGES * 250 - 1,
    )
    index_bytes, index_crc = index.write(folder)
    with (folder / "pages.bin").open("wb") as file:
        file.truncate(PAGES * 16_384)
    schema = pa.schema([("id", pa.int64())])
    form = KeyForm.choose(schema, ["id"])
    Manifest(
        key_columns=["id"],
        key_types=["int64"],
        code_kind=form.kind,
        hash_seed=0,
        page_order="key",
        schema_base64=schema_as_text(form.told_by(schema)),
        rows=PAGES * 250,
        distinct_keys=PAGES * 250,
        most_rows_of_a_key=1,
        row_bytes=64,
        page_bytes=16_384,
        pages=PAGES,
        last_code=PAGES * 250 - 1,
        longest_page_bytes=16_384,
        most_rows_of_a_page=250,
        files=[PageFile("versions/000001/pages.bin", PAGES * 16_384, crc=0, salt=7)],
        index_file_bytes=index_bytes,
        index_file_crc=index_crc,
    ).write(folder)
    switch_current(path, 1)
    return path
