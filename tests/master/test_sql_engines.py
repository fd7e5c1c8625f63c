"""What is particular to one database: values without an exact form, collations, locks and lost connections."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi
from tests.master.servers import Database, database

from tidemill.core.errors import SpecError, StoreError
from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.master.sql import MasterTable

NUMBERS = pa.table({"id": pa.array(range(2000), pa.int64()), "name": [f"name {n}" for n in range(2000)]})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with database("postgresql", tmp_path_factory.mktemp("pg")) as opened:
        opened.create("numbers", "id BIGINT, name TEXT", NUMBERS, index="id")
        yield opened


def end_of_all_handles(server: Database) -> None:
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    )


@pytest.mark.parametrize("name", ["cache", "mesh", "inl"])
def test_a_connection_lost_in_the_middle_is_an_error_worth_a_retry(server: Database, name: str):
    table = MasterTable.open(server.address, table="numbers", key="id", page_bytes=1024)
    batch = pa.RecordBatch.from_pydict({"k": np.random.default_rng(2).integers(0, 4000, 100)})
    join = make_join(name, table, batch.schema, stream_key="k", budget=MemoryBudget(200_000), how="left")  # type: ignore[arg-type]
    outputs: list[pa.RecordBatch] = []

    def work(batches: int) -> None:
        for report in drive(join, [batch] * batches):
            outputs.extend(report.outputs)

    work(2)
    join.offer(batch)
    outputs.extend(join.step().outputs)
    end_of_all_handles(server)
    with pytest.raises(StoreError, match="does not answer") as error:
        work(5)
    assert (error.value.retryable, error.value.code) == (True, "database_away")
    # What left is right: no existing row became NULL because its read failed.
    left = pa.Table.from_batches(outputs).to_pylist()
    assert len(left) >= 100
    assert all((row["name"] is None) == (row["k"] >= 2000) for row in left)
    with pytest.raises(StoreError) as error:
        table.lookup(np.array([5]))
    assert error.value.retryable
    table.close()
    assert MasterTable.open(server.address, table="numbers", key="id").rows == 2000


def test_only_what_may_pass_is_worth_a_retry(server: Database):
    away = "postgresql://tidemill@127.0.0.1:1/postgres"
    for address, retryable in ((away, True), (server.address + "_not", False)):
        with pytest.raises(StoreError) as error:
            MasterTable.open(address, table="numbers", key="id")
        assert error.value.retryable is retryable
    server.execute("CREATE TABLE IF NOT EXISTS secret (id BIGINT PRIMARY KEY)")
    server.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(StoreError, match="permission denied") as error:
        MasterTable.open(server.address.replace("tidemill@", "guest@"), table="secret", key="id")
    assert not error.value.retryable


@pytest.mark.parametrize(
    ("kind", "value"),
    [("DATE", "infinity"), ("TIMESTAMP", "-infinity"), ("TIMESTAMPTZ", "infinity"), ("NUMERIC(9, 2)", "NaN")],
)
def test_values_that_the_driver_would_wrap_around_are_refused(server: Database, kind: str, value: str):
    server.create("wild", f"id BIGINT, v {kind}", NUMBERS.slice(0, 0), index="id")
    server.execute(f"INSERT INTO wild VALUES (1, NULL), (2, '{value}')")
    with pytest.raises(SpecError, match=r"1 values of wild.v have no exact Arrow form"):
        MasterTable.open(server.address, table="wild", key="id")


def test_types_of_postgresql_arrive_exactly(server: Database):
    columns = (
        "id INT PRIMARY KEY, u UUID, j JSONB, t TIMESTAMPTZ, d NUMERIC(60, 20), c CHAR(4), b BYTEA, h TIME"
    )
    server.create("many", columns, NUMBERS.slice(0, 0), index=None)
    server.execute(
        "INSERT INTO many VALUES (1, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\": 1}', '2024-02-03 04:05:06+02', "
        "1234567890123456789012345.12345678901234567890, 'ab', '\\x00ff', '23:59:59.999999'), "
        "(2, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
    )
    table = MasterTable.open(server.address, table="public.many", key="id")
    first, second = table.read_page(0).to_pylist()
    assert set(second.values()) == {2, None}
    assert str(first["d"]) == "1234567890123456789012345.12345678901234567890"
    assert (first["u"].hex(), first["j"], first["c"]) == (
        "a0eebc999c0b4ef8bb6d6bb9bd380a11",
        '{"a": 1}',
        "ab  ",
    )
    assert (first["t"].isoformat(), first["b"]) == ("2024-02-03T02:05:06+00:00", b"\x00\xff")
    assert table.read_rows(0, 1).buffer.nbytes == table._index.bytes.sum()


def test_a_collation_that_makes_texts_equal_cannot_tell_keys_apart(server: Database):
    with closing(dbapi.connect(server.address)) as connection, connection.cursor() as cursor:
        try:
            cursor.execute(
                "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            )
        except dbapi.Error as error:
            pytest.skip(f"this PostgreSQL has no ICU: {error}")
        connection.commit()
    server.create("words", "w TEXT COLLATE loose, n BIGINT", NUMBERS.slice(0, 0), index="w")
    with pytest.raises(SpecError, match="tells keys apart otherwise"):
        MasterTable.open(server.address, table="words", key="w")
    server.execute("CREATE INDEX words_n ON words (n)")  # as a value the column is welcome
    assert MasterTable.open(server.address, table="words", key="n").schema.names == ["w", "n"]


def test_composite_keys_are_read_through_the_index(server: Database):
    server.create("pairs", "a BIGINT, b TEXT", NUMBERS, index="a, b")
    server.execute("ANALYZE pairs")
    table = MasterTable.open(server.address, table="pairs", key=["a", "b"], page_bytes=1024)
    query = table._table.ranges()
    for number, value in ((4, "'x'"), (3, "9"), (2, "'x'"), (1, "5")):
        query = query.replace(f"${number}", value)
    with closing(dbapi.connect(server.address)) as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
        cursor.execute(f"EXPLAIN {query}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "on pairs_key" in plan
    assert "Index Cond: ((ROW(a, b) >= ROW(5, 'x'::text)) AND (ROW(a, b) <= ROW(9, 'x'::text)))" in plan


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    with database("sqlite", tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(
    ("kind", "values", "refused"),
    [
        ("INTEGER", "(1), (NULL), ('ten'), (2.5)", 2),
        ("DECIMAL(9, 2)", "(1), (1.25), (1.255), (10000000), ('x')", 3),
        ("DATE", "('2024-02-29'), ('2024-2-3'), ('2023-02-29'), (45)", 3),
        (
            "TIMESTAMP",
            "('2024-02-29 01:02:03'), ('2024-02-29T01:02:03.5'), ('noon'), "
            "('2023-02-29 01:02:03'), ('2024-02-29 01:02:03+02'), ('2024-02-29 01:02:03.1234567'), ('12:00')",
            5,
        ),
        ("BOOLEAN", "(0), (1), (2)", 1),
        ("TEXT", "('a'), (x'00')", 1),
        ("BLOB", "('a'), (x'00')", 1),
    ],
)
def test_values_of_another_type_than_declared_are_refused(
    sqlite: Database, kind: str, values: str, refused: int
):
    sqlite.execute(f"CREATE TABLE loose (id INTEGER PRIMARY KEY, v {kind})")
    sqlite.execute(f"INSERT INTO loose (v) VALUES {values}")
    with pytest.raises(SpecError, match=f"{refused} values of loose.v have no exact Arrow form") as refusal:
        MasterTable.open(sqlite.address, table="loose", key="id")
    condition = refusal.value.next_move.split("find them by: ")[1].rsplit("), or", 1)[0]
    sqlite.execute(f"DELETE FROM loose AS t WHERE {condition}")
    assert MasterTable.open(sqlite.address, table="loose", key="id").read_page(0).num_rows > 0


def test_a_text_key_needs_an_index_in_the_order_of_its_bytes(sqlite: Database):
    sqlite.execute("CREATE TABLE words (w TEXT COLLATE NOCASE PRIMARY KEY, n INTEGER)")
    sqlite.execute("INSERT INTO words VALUES ('b', 1), ('A', 2)")
    with pytest.raises(SpecError) as refusal:
        MasterTable.open(sqlite.address, table="words", key="w")
    sqlite.execute(refusal.value.statement)
    table = MasterTable.open(sqlite.address, table="words", key="w", page_bytes=1)
    assert [page.column("w")[0].as_py() for page in table.scan()] == ["A", "b"]
    assert table.lookup(pa.array(["a", "A", "B"]))[0].tolist() == [1]


def test_a_file_in_which_readers_block_writers_is_refused(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with pytest.raises(SpecError, match="journal_mode = WAL"):
        MasterTable.open(tmp_path / "old.db", table="t", key="id")


def test_a_duckdb_file_held_by_another_process_is_worth_a_retry(tmp_path: Path):
    file = tmp_path / "held.duckdb"
    script = f"import duckdb; c = duckdb.connect({str(file)!r}); c.execute('CREATE TABLE t (id INT PRIMARY KEY)'); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoreError) as error:
            MasterTable.open(file, table="t", key="id")
        holder.communicate(b"\n")
    assert error.value.retryable
    assert MasterTable.open(file, table="t", key="id").rows == 0


@pytest.mark.parametrize("others", [{}, {"read_only": True}, {"config": {"threads": 1}}])
def test_a_duckdb_file_that_this_process_has_open_is_shared(tmp_path: Path, others: dict[str, Any]):
    file = tmp_path / "ours.duckdb"
    with closing(duckdb.connect(file)) as connection:
        connection.execute("CREATE TABLE asked (id INT PRIMARY KEY)")
        connection.execute("INSERT INTO asked VALUES (7)")
    with closing(duckdb.connect(file, **others)):
        if "config" in others:
            with pytest.raises(StoreError, match="different configuration"):
                MasterTable.open(file, table="asked", key="id")
            return
        for _ in range(2):
            assert MasterTable.open(file, table="asked", key="id").lookup(np.array([7, 8]))[0].tolist() == [0]


def test_names_and_collations_in_duckdb(tmp_path: Path):
    with closing(duckdb.connect(tmp_path / "a.duckdb")) as connection:
        connection.execute('CREATE TABLE "a {b}" ("k 1" VARCHAR, "k""2" INTEGER, e ENUM(\'x\', \'y\'))')
        connection.execute('CREATE INDEX i ON "a {b}" ("k 1", "k""2")')
        connection.execute("INSERT INTO \"a {b}\" VALUES ('q', 5, 'y'), ('q', 4, NULL)")
        connection.execute("CREATE TABLE c (w VARCHAR COLLATE NOCASE PRIMARY KEY)")
    table = MasterTable.open(tmp_path / "a.duckdb", table="a {b}", key=["k 1", 'k"2'], page_bytes=1)
    assert [page.column("e")[0].as_py() for page in table.scan()] == [None, "y"]
    assert table.lookup([pa.array(["q", "q"]), pa.array([5, 6])])[0].tolist() == [0]
    with pytest.raises(SpecError, match="tells keys apart otherwise"):
        MasterTable.open(tmp_path / "a.duckdb", table="c", key="w")


def test_what_is_no_database_is_refused(tmp_path: Path):
    (tmp_path / "text").write_text("no database")
    for file, code in ((tmp_path / "none", "unreadable"), (tmp_path / "text", "unknown_database")):
        refusal: Any
        with pytest.raises((SpecError, StoreError)) as refusal:
            MasterTable.open(file, table="t", key="id")
        assert refusal.value.code == code
