"""What a store says about itself, and how soon."""

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.errors import StoreError
from tidemill.master import MasterData
from tidemill.master.index import PageIndex
from tidemill.master.keys import KeyForm
from tidemill.master.layout import (
    FORMAT_VERSION,
    Manifest,
    PageFile,
    schema_as_text,
    switch_current,
    version_folder,
)

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
