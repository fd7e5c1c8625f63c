"""Master data built from a DataFrame holds what a build from Arrow holds, whatever happens to tasks and driver."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import tidemill as tm
from tidemill.core.errors import SpecError
from tidemill.master import hashing
from tidemill.spark import master_build

WIDE = """
    SELECT id * 7919 % 1009 AS number, CAST(id % 50 AS TINYINT) AS small, concat('name ', id % 300) AS name,
           CAST(id % 77 AS DECIMAL(20, 3)) AS amount, date_add(DATE'2020-01-01', CAST(id % 90 AS INT)) AS day,
           timestamp_seconds(id % 400) AS instant, CAST(timestamp_seconds(id % 400) AS TIMESTAMP_NTZ) AS clock,
           CAST(concat('b', id % 60) AS BINARY) AS bytes, IF(id % 3 = 0, NULL, id / 7D) AS maybe,
           IF(id % 5 = 0, NULL, sequence(0, id % 4)) AS list, map(concat('k', id), id) AS pairs,
           named_struct('a', id, 'b', IF(id % 2 = 0, NULL, 'text')) AS record, id AS row
    FROM range({rows})
"""


@pytest.fixture
def many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_build, "_ROWS_OF_A_FILE", 200)


def wide(spark: SparkSession, rows: int = 2000) -> DataFrame:
    return spark.sql(WIDE.format(rows=rows))


def numbers(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(rows).selectExpr("id AS key", "concat('value ', id) AS value")


def bag(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(row) for row in rows)


def stored(master: tm.MasterData) -> list[dict[str, Any]]:
    return [row for page in master.scan() for row in page.to_pylist()]


def files_of(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


KEYS = [
    "number",
    "small",
    "name",
    "amount",
    "day",
    "instant",
    "clock",
    "bytes",
    ("name", "small"),
    ("number", "day"),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_store_from_a_dataframe_equals_one_from_arrow(
    spark: SparkSession, tmp_path: Path, many_files: None, key: Any
) -> None:
    rows = wide(spark)
    ours = tm.MasterData.build(rows, key=key, path=tmp_path / "spark", page_bytes=4096)
    table = rows.toArrow()
    theirs = tm.MasterData.build(table, key=key, path=tmp_path / "arrow", page_bytes=4096)
    assert len(ours.manifest.files) > 3
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    counted = (
        "rows",
        "distinct_keys",
        "most_rows_of_a_key",
        "last_code",
        "code_kind",
        "hash_seed",
        "key_types",
    )
    assert [getattr(ours.manifest, c) for c in counted] == [getattr(theirs.manifest, c) for c in counted]
    assert abs(ours.row_bytes - theirs.row_bytes) <= 4
    assert bag(stored(ours)) == bag(stored(theirs))
    assert [row[ours.key] for row in stored(ours)] == sorted(row[ours.key] for row in stored(ours))
    names = [key] if isinstance(key, str) else key
    for at in range(
        0, 2000, 400
    ):  # a few at a time: a lookup of all keys reads all pages and finds what the index hides
        asked = [table.column(name).combine_chunks().slice(at, 3) for name in names]
        (found, met), (expected, meant) = ours.lookup(asked), theirs.lookup(asked)
        assert Counter(found.tolist()) == Counter(expected.tolist())
        assert bag(met.to_pylist()) == bag(meant.to_pylist())


def test_one_key_with_most_rows_is_whole_and_found(
    spark: SparkSession, tmp_path: Path, many_files: None
) -> None:
    rows = spark.range(6000).selectExpr(
        "IF(id % 20 = 0, id, 3007) AS key", "id AS row", "repeat('x', 90) AS pad"
    )
    master = tm.MasterData.build(rows, key="key", path=tmp_path, page_bytes=4096)
    assert (master.manifest.most_rows_of_a_key, master.manifest.distinct_keys) == (5700, 301)
    assert master.lookup(np.array([3007]))[1].num_rows == 5700
    assert sorted(row["row"] for row in stored(master)) == list(range(6000))
    assert len(master.manifest.files) > 1


def test_timestamps_are_instants_whatever_the_sessions_time_zone(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        rows = wide(spark, 100).select("instant", "clock", "row")
        master = tm.MasterData.build(rows, key="instant", path=tmp_path)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert master.schema.field("instant").type == pa.timestamp("us", tz="UTC")
    assert bag(stored(master)) == bag(
        stored(tm.MasterData.build(rows.toArrow(), key="instant", path=tmp_path / "utc"))
    )


def test_names_with_dots_and_names_that_differ_by_case_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(1, 2, 3, 4)], ["a.b", "A", "a", "`"])
    master = tm.MasterData.build(rows, key=("a.b", "a"), path=tmp_path)
    assert [row | {"_code": 0} for row in stored(master)] == [{"a.b": 1, "A": 2, "a": 3, "`": 4, "_code": 0}]


def test_small_arrow_batches_fill_pages_all_the_same(spark: SparkSession, tmp_path: Path) -> None:
    kept = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    try:
        ours = tm.MasterData.build(numbers(spark, 3000), key="key", path=tmp_path / "spark")
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", kept)
    assert (
        ours.pages
        == tm.MasterData.build(numbers(spark, 3000).toArrow(), key="key", path=tmp_path / "arrow").pages
    )


def test_an_empty_dataframe_is_master_data_too(spark: SparkSession, tmp_path: Path) -> None:
    for key in ("key", "value"):
        master = tm.MasterData.build(numbers(spark, 0), key=key, path=tmp_path / key)
        assert (master.rows, master.pages, stored(master)) == (0, 0, [])
        assert master.lookup(pa.array([1] if key == "key" else ["x"]))[1].num_rows == 0


@pytest.mark.parametrize(
    ("query", "code", "says"),
    [
        (
            "SELECT IF(id < 3, NULL, id) AS id FROM range(10)",
            "null_keys",
            "3 of 10 rows have NULL in key 'id'",
        ),
        ("SELECT 1 AS idd", "unknown_key_column", "did you mean 'idd'"),
        ("SELECT true AS id", "key_type", "integers, strings"),
        ("SELECT 1 AS id, 2 AS x, 3 AS x", "column_twice", "several columns 'x'"),
        ("SELECT 'a' AS id, 2 AS _code", "column_twice", "rename it"),
        ("SELECT 1 AS id, INTERVAL '1' MONTH AS x", "column_type", "'x' has type interval month"),
        ("SELECT 1 AS id, array(parse_json('1')) AS x", "column_type", "array<variant>"),
        ("SELECT 'a' COLLATE UTF8_LCASE AS id", "column_type", "collate"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, query: str, code: str, says: str
) -> None:
    with pytest.raises(SpecError, match=says) as refusal:
        tm.MasterData.build(spark.sql(query), key="id", path=tmp_path)
    assert refusal.value.code == code
    assert files_of(tmp_path) == []


def test_composite_keys_with_a_null_anywhere_are_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(1, None), (None, None), (2, "b")], "a int, b string")
    with pytest.raises(SpecError, match="2 of 3 rows have NULL in key 'a', 'b'"):
        tm.MasterData.build(rows, key=("a", "b"), path=tmp_path)


def test_streams_and_given_orders_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is a stream"):
        tm.MasterData.build(spark.readStream.format("rate").load(), key="value", path=tmp_path)
    with pytest.raises(SpecError, match="write it as Parquet"):
        tm.MasterData.build(numbers(spark, 3), key="key", path=tmp_path, order_by="key")


def test_two_keys_with_one_code_make_the_build_take_another_seed(
    spark: SparkSession, tmp_path: Path, many_files: None
) -> None:
    mask, inverse = 2**64 - 1, {p: pow(int(p), -1, 2**64) for p in (hashing._P1, hashing._P2)}
    heads = hashing.hash_columns([pa.array([1, 2])], seed=0).view(np.uint64).tolist()

    def spun(word: int) -> int:
        turned = word * int(hashing._P2) & mask
        return (turned << 31 | turned >> 33) * int(hashing._P1) & mask

    def unspun(bits: int) -> int:
        turned = bits * inverse[hashing._P1] & mask
        return (turned >> 31 | turned << 33) * inverse[hashing._P2] & mask

    # The second part of a key is mixed in by xor: whatever the first parts are, a second one evens them out.
    p1 = int(hashing._P1)
    other = unspun(spun(5) ^ (heads[0] + p1 & mask) ^ (heads[1] + p1 & mask))
    other -= 2**64 if other >= 2**63 else 0
    pair = [pa.array([1, 2]), pa.array([5, other])]
    codes = hashing.hash_columns(pair, seed=0)
    assert codes[0] == codes[1]
    rows = [(1, 5), (2, other), *((n, n) for n in range(3, 900))]
    master = tm.MasterData.build(
        spark.createDataFrame(rows, "a bigint, b bigint"), key=("a", "b"), path=tmp_path
    )
    assert master.manifest.hash_seed == 1
    assert Counter((row["a"], row["b"]) for row in stored(master)) == Counter(rows)
    assert len(files_of(tmp_path)) == len(master.manifest.files) + 4  # index, manifest, CURRENT and lock


def test_a_lookup_join_reads_such_a_store(spark: SparkSession, tmp_path: Path, many_files: None) -> None:
    rows = wide(spark).select("name", "row", "list")
    master = tm.MasterData.build(rows, key="name", path=tmp_path / "m")
    stream = spark.range(400).selectExpr("concat('name ', id) AS name", "id")
    ours = tm.enrich(stream, master, on="name", memory="8 MB", hot_rows=tmp_path / "hot")
    theirs = stream.join(rows, on="name", how="left").select(*ours.columns)
    assert bag([row.asDict() for row in ours.collect()]) == bag([row.asDict() for row in theirs.collect()])
