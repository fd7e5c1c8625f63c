"""A table in each database as master data: the rows as they are, one snapshot, errors that are errors."""

import pickle
import uuid
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.master.servers import ENGINES, Database, database

from tidemill.core.errors import SpecError, StoreError
from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.master import hashing
from tidemill.master.keys import KeyForm
from tidemill.master.sql import MasterTable

COLUMNS = "id BIGINT, name VARCHAR(40), price DECIMAL(12, 2), day DATE, made TIMESTAMP, is_new BOOLEAN, share DOUBLE PRECISION"


def _moment(year: int, microsecond: int) -> datetime:
    return datetime(year, 12, 31, 23, 59, 59, microsecond)  # noqa: DTZ001 - the column has no zone


def products(rows: int = 1000) -> pa.Table:
    """Each value of each column NULL somewhere; two rows for each tenth key."""
    ids = sorted([*range(rows), *range(0, rows, 10)])

    def column(values: list[Any], kind: pa.DataType, every: int) -> "pa.Array[Any]":
        return pa.array([None if n % every == 1 else value for n, value in enumerate(values)], kind)

    number = range(len(ids))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": column([f"größe {n}" if n % 7 else "" for n in number], pa.string(), 3),
            "price": column([Decimal(n * n - 5000) / 100 for n in number], pa.decimal128(12, 2), 4),
            "day": column([date.fromordinal(719_000 + n) for n in number], pa.date32(), 5),
            "made": column([_moment(1969, n) for n in number], pa.timestamp("us"), 6),
            "is_new": column([n % 2 == 0 for n in number], pa.bool_(), 7),
            "share": column([n / 3 for n in number], pa.float64(), 8),
        }
    )


@pytest.fixture(scope="module", params=ENGINES)
def db(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with database(request.param, tmp_path_factory.mktemp(request.param)) as opened:
        opened.create("products", COLUMNS, products(), index="id")
        yield opened


def opened(db: Database, **options: Any) -> MasterTable:
    return MasterTable.open(db.address, **{"table": "products", "key": "id", "page_bytes": 4096, **options})


def in_order(rows: pa.Table) -> list[Any]:
    return sorted(map(repr, rows.to_pylist()))


def test_a_scan_gives_every_row_with_its_exact_values(db: Database):
    table = opened(db)
    found = pa.Table.from_batches(table.scan(from_page=3))
    assert in_order(found) == in_order(products())
    assert {field.name: field.type for field in table.schema} == {f.name: f.type for f in products().schema}
    assert found.column("id").to_pylist()[0] == table.read_page(3).column("id").to_pylist()[0] > 0
    assert (table.rows, table.page_order) == (1100, "key")
    table.close()


def test_pages_are_found_by_key_and_read_in_any_order(db: Database):
    table = opened(db)
    assert table.pages > 10
    first, count = table.locate(np.array([-1, 0, 500, 999, 1000]))
    assert count.tolist() == [0, 1, 1, 1, 0]
    page = table.read_page(int(first[2]))
    assert page.column("id").to_pylist().count(500) == 2
    wanted = [7, 2, 3, 4, 2]
    pages = table.read_pages(wanted)
    assert [p.column("id")[0].as_py() for p in pages] == [
        table.read_page(n).column("id")[0].as_py() for n in wanted
    ]
    assert table.read_batch(wanted).num_rows == sum(p.num_rows for p in pages)
    assert [p.num_rows for p in pages] == [table.read_page(n).num_rows for n in wanted]
    assert table.read_pages([]) == []
    table.close()


def test_rows_in_one_piece_are_those_of_the_pages(db: Database):
    table = opened(db)
    rows = table.begin_read(2, 3).result()
    batch = table.read_batch([2, 3, 4])
    assert table.layout.decode(rows.buffer, rows.at).to_pylist() == batch.to_pylist()
    assert rows.codes.tolist() == batch.column("id").to_pylist()
    assert np.diff(rows.page_start).tolist() == [table.read_page(n).num_rows for n in (2, 3, 4)]
    assert rows.buffer.nbytes == sum(int(table._index.bytes[n]) for n in (2, 3, 4))  # as sizes were foretold
    assert table.run_buffer_bytes(2, 3) >= rows.buffer.nbytes + batch.nbytes
    assert batch.nbytes <= 3 * table.longest_page_bytes
    table.close()


def test_reads_are_counted(db: Database):
    table = opened(db)
    list(table.scan())
    assert table.pages_read == table.pages
    assert table.bytes_read == pytest.approx(table.rows * table.row_bytes, rel=0.05)
    assert table.read_seconds > 0
    table.close()


def test_many_keys_are_looked_up_at_once(db: Database):
    table = opened(db)
    position, rows = table.lookup(pa.array([10, None, 5000, 11, 10], pa.int64()))
    assert position.tolist() == [0, 0, 3, 4, 4]
    assert rows.column("id").to_pylist() == [10, 10, 11, 10, 10]
    assert table.lookup(np.array([], dtype=np.int64))[1].num_rows == 0
    assert table.lookup(np.array([-5]))[1].num_rows == 0
    many = np.random.default_rng(3).integers(0, 1000, 40_000)
    assert len(table.lookup(many)[0]) == len(many) + int((many % 10 == 0).sum())
    with pytest.raises(SpecError, match="never compared on a guess"):
        table.lookup(pa.array(["10"]))
    table.close()


KEYS: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "int": ("INTEGER", pa.int32(), [-(2**31), -1, 0, 7, 2**31 - 1]),
    "text": ("VARCHAR(40)", pa.string(), ["", " ", "A", "a", "ab", "Z", "ß", "日本", "x'y\"{}"]),
    "decimal": ("DECIMAL(20, 3)", pa.decimal128(20, 3), [Decimal("-12345678901234567.891"), Decimal(0), Decimal("0.001")]),
    "date": ("DATE", pa.date32(), [date(1, 1, 1), date(1970, 1, 1), date(2024, 2, 29)]),
    "timestamp": ("TIMESTAMP", pa.timestamp("us"), [_moment(1900, 0), _moment(2024, 1)]),
    "bytes": ("BLOB", pa.binary(), [b"", b"\x00", b"\x00\xff", b"\xff"]),
    "uuid": ("UUID", pa.binary(16), [bytes(16), bytes(range(16)), b"\xff" * 16]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type(db: Database, kind: str):
    sql_type, arrow_type, keys = KEYS[kind]
    if db.engine == "sqlite" and kind in ("decimal", "date", "timestamp", "uuid"):
        db.create("kinds", f"k {sql_type}, n BIGINT", products(0).select([0, 0]), index="k")
        with pytest.raises(SpecError) as refusal:
            opened(db, table="kinds", key="k")
        assert refusal.value.code in ("column_type", "key_type")
        return
    if db.engine == "postgresql" and kind == "bytes":
        sql_type = "BYTEA"
    # UUIDs go in as text: no engine takes their bytes
    given = [str(uuid.UUID(bytes=key)) for key in keys] if kind == "uuid" else keys
    values = pa.array([*given, given[1]], pa.string() if kind == "uuid" else arrow_type)
    rows = pa.table({"k": values, "n": range(len(values))})
    if kind == "uuid":
        db.create("kinds", f"k {sql_type}, n BIGINT", rows.slice(0, 0), index="k")
        for key, n in zip(values.to_pylist(), range(len(values)), strict=True):
            db.execute(f"INSERT INTO kinds VALUES ('{key}', {n})")
    else:
        db.create("kinds", f"k {sql_type}, n BIGINT", rows, index="k")
    table = opened(db, table="kinds", key="k", page_bytes=1)
    assert table.pages == len(keys)  # each key by itself
    stored = pa.array([*keys, keys[1]], arrow_type)
    position, found = table.lookup(stored.cast(pa.int64()) if kind == "int" else stored)
    assert sorted(zip(position.tolist(), found.column("n").to_pylist(), strict=True)) == sorted(
        [*((n, n) for n in range(len(values))), (1, len(keys)), (len(keys), 1)]
    )
    by_page = [row["n"] for page in table.scan() for row in page.to_pylist()]
    assert sorted(by_page) == list(range(len(values)))
    table.close()


def test_codes_beyond_the_memory_given_are_mapped_from_a_file(db: Database):
    db.create("by_name", "name VARCHAR(40), n BIGINT", _named(5000), index="name")
    held, mapped = (opened(db, table="by_name", key="name", memory=memory) for memory in ("1 MB", 20_000))
    assert held.mapped_key_bytes == 0
    assert mapped.mapped_key_bytes == 5000 * 12 == held.index_bytes - mapped.index_bytes
    names = pa.array(["key 17", "key 4999", "none"])
    for table in (held, mapped):
        assert table.lookup(names)[1].column("n").to_pylist() == [17, 4999]
        codes, _ = table.key_form.codes([names])
        pages, count = table.locate(codes)
        assert count.tolist() == [1, 1, 0]
        assert "key 17" in table.read_page(int(pages[0])).column("name").to_pylist()
    assert held.identity != opened(db, table="by_name", key="name", page_bytes=500).identity
    held.close()


class TwinKeys(KeyForm):
    """A key that the table has not shares its code with one that it has."""

    def codes(self, columns: Any) -> Any:
        texts = ["key 17" if text == "twin" else text for text in columns[0].to_pylist()]
        return super().codes([pa.array(texts, pa.string())])


def test_keys_that_share_a_code_are_told_apart(db: Database):
    db.create("by_name", "name VARCHAR(40), n BIGINT", _named(50), index="name")
    table = opened(db, table="by_name", key="name")
    table.key_form = TwinKeys(*vars(table.key_form).values())
    for keys, position in ((["twin", "key 17", "key 3"], [1, 2]), (["key 17", "twin"], [0]), (["twin"], [])):
        assert table.lookup(pa.array(keys))[0].tolist() == position
    table.close()


def test_a_hash_that_gives_one_code_to_two_keys_is_replaced(db: Database, monkeypatch: pytest.MonkeyPatch):
    db.create("by_name", "name VARCHAR(40), n BIGINT", _named(50), index="name")
    hash_columns, bad_seeds = hashing.hash_columns, 2

    def weak(columns: Any, seed: int) -> Any:
        codes = hash_columns(columns, seed)
        return codes // 2**58 if seed < bad_seeds else codes

    monkeypatch.setattr(hashing, "hash_columns", weak)
    table = opened(db, table="by_name", key="name")
    assert table.key_form.seed == KeyForm.of_schema(table.schema, table.key).seed == 2
    assert table.lookup(pa.array(["key 9", "key 17"]))[1].column("n").to_pylist() == [9, 17]
    bad_seeds = 99
    with pytest.raises(StoreError, match="come again after others"):
        opened(db, table="by_name", key="name")


def test_rows_of_a_key_have_one_order_wherever_they_lie(db: Database):
    """A restored join goes on in the middle of a page: counts on positions."""
    rows = products(60)
    numbers = pa.array(np.random.default_rng(6).permutation(len(rows)))
    batches, identities = [], set()
    for name, given in (("one_way", rows), ("other_way", rows.take(numbers))):
        repeated = pa.concat_tables([given] * 2).set_column(
            0, "id", pa.array([n // 20 for n in [*given["id"].to_pylist()] * 2])
        )
        db.create(name, COLUMNS, repeated, index="id")
        table = opened(db, table=name, page_bytes=500)
        batches.append(table.read_batch([2, 1, 1, 0]))
        assert (
            batches[-1]
            .slice(table.read_page(2).num_rows, table.read_page(1).num_rows)
            .equals(table.read_page(1))
        )
        identities.add(table.identity)
        table.close()
    assert batches[0].equals(batches[1])
    assert len(identities) == 1


def test_long_runs_are_asked_for_in_pieces(db: Database, monkeypatch: pytest.MonkeyPatch):
    table = opened(db)
    whole = table.read_batch(range(table.pages))
    monkeypatch.setattr(table._engine, "query_bytes", 3 * 4096)
    asked: list[int] = []
    ranges = table._engine.ranges
    monkeypatch.setattr(
        table._engine,
        "ranges",
        lambda sql, bounds, wire: asked.append(bounds.num_rows) or ranges(sql, bounds, wire),
    )
    assert table.read_batch(range(table.pages)).equals(whole)
    assert asked[0] >= table.pages // 3
    table.close()


def _named(rows: int) -> pa.Table:
    return pa.table({"name": [f"key {n}" for n in range(rows)], "n": pa.array(range(rows), pa.int64())})


def test_an_open_handle_sees_no_later_change(db: Database):
    db.create("changing", COLUMNS, products(), index="id")
    table = opened(db, table="changing")
    before, identity = in_order(pa.Table.from_batches(table.scan())), table.identity
    db.execute("UPDATE changing SET price = 1 WHERE id = 500")
    db.execute("DELETE FROM changing WHERE id < 50")
    db.insert("changing", products().slice(0, 20))
    assert in_order(pa.Table.from_batches(table.scan())) == before
    assert len(table.lookup(np.arange(50))[0]) == 55
    later = opened(db, table="changing")
    assert later.rows == 1100 - 55 + 20
    assert later.identity != identity
    assert set(later.lookup(np.array([500]))[1].column("price").to_pylist()) == {Decimal(1)}
    table.close()
    again = opened(db, table="changing")
    assert again.identity == later.identity  # the same content
    db.execute("UPDATE changing SET share = 0.25 WHERE id = 700")
    assert opened(db, table="changing").identity != again.identity  # not seen in keys, sizes or counts


def test_an_empty_table_is_master_data_too(db: Database):
    db.create("empty_one", COLUMNS, products(0), index="id")
    table = opened(db, table="empty_one")
    assert (table.rows, table.pages, list(table.scan())) == (0, 0, [])
    assert table.locate(np.array([1]))[1].tolist() == [0]
    stream = pa.RecordBatch.from_pydict({"k": [1, 2]})
    join = make_join("cache", table, stream.schema, stream_key="k", budget=MemoryBudget(200_000), how="anti")  # type: ignore[arg-type]
    assert sum(report.output_rows for report in drive(join, [stream])) == 2


def test_only_the_columns_named_are_read(db: Database):
    table = opened(db, columns=["price"])
    assert table.schema.names == ["id", "price"]
    assert table.lookup(np.array([11]))[1].schema.names == ["id", "price"]
    with pytest.raises(SpecError, match="did you mean 'price'"):
        opened(db, columns=["prise"])


def test_null_keys_are_refused_with_their_number(db: Database):
    rows = pa.table({"id": pa.array([1, None, 2, None], pa.int64()), "n": pa.array(range(4), pa.int64())})
    db.create("holes", "id BIGINT, n BIGINT", rows, index="id")
    with pytest.raises(SpecError, match="2 of 4 rows of holes have NULL in key 'id'") as refusal:
        opened(db, table="holes")
    assert (refusal.value.code, refusal.value.null_keys) == ("null_keys", 2)


def test_without_an_index_the_statement_for_one_is_given(db: Database):
    db.create("bare", COLUMNS, products(10), index="name, id")
    with pytest.raises(SpecError) as refusal:
        opened(db, table="bare")
    assert refusal.value.code == "no_index"
    db.execute(refusal.value.statement)
    assert opened(db, table="bare").rows == 11
    with pytest.raises(SpecError, match="no index that begins with"):
        opened(db, table="bare", key=["id", "name"])


def test_wrong_names_and_types_are_refused_with_the_valid_ones(db: Database):
    with pytest.raises(SpecError, match="did you mean 'products'"):
        opened(db, table="product")
    with pytest.raises(SpecError, match="did you mean 'id'"):
        opened(db, key="idd")
    with pytest.raises(SpecError, match="key column 'share'") as refusal:
        opened(db, key="share")
    assert refusal.value.code == "key_type"
    odd = {"postgresql": "NUMERIC", "sqlite": "DECIMAL(20, 2)", "duckdb": "HUGEINT"}[db.engine]
    db.create("odd", f"id BIGINT, n {odd}", products(0).select([0, 0]), index="id")
    with pytest.raises(SpecError, match="no exact Arrow form") as refusal:
        opened(db, table="odd")
    assert refusal.value.column == "n"
    assert opened(db, table="odd", columns=[]).schema.names == ["id"]


def test_a_column_named_like_our_own_is_left_out_or_refused(db: Database):
    rows = pa.table({"name": ["a", "b"], "_code": pa.array([1, 2], pa.int64())})
    db.create("named", "name VARCHAR(9), _code BIGINT", rows, index="name")
    with pytest.raises(SpecError, match="_code"):
        opened(db, table="named", key="name")
    assert opened(db, table="named", key="name", columns=[]).rows == 2


def test_a_handle_stays_in_its_process(db: Database):
    with pytest.raises(SpecError, match="cannot leave its process"):
        pickle.dumps(opened(db))


def test_a_row_that_vanishes_is_an_error(db: Database, monkeypatch: pytest.MonkeyPatch):
    """As if the database lost a row of its snapshot: fewer rows, or a page that begins elsewhere."""
    table = opened(db)
    ranges = table._engine.ranges
    for lose in (
        lambda rows: rows.slice(1),
        lambda rows: pa.concat_tables([rows.slice(1), rows.slice(0, 1)]),
    ):
        monkeypatch.setattr(table._engine, "ranges", lambda *asked, lose=lose: lose(ranges(*asked)))
        with pytest.raises(StoreError, match="the opening pass counted") as error:
            table.read_page(4)
        assert error.value.code == "table_changed"
