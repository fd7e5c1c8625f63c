"""`tidemill sql` against real warehouse files, in every state in which a user may find the folder."""

import csv
import json
import os
import pty
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tidemill.load.tokens import create_token


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "tidemill-demo"
    folder.mkdir()
    with duckdb.connect(str(folder / "warehouse.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE sales AS SELECT i AS id, (i * 1.5)::DECIMAL(9, 2) AS price, "
            "CASE WHEN i % 2 = 0 THEN 'even' END AS word, DATE '2026-01-01' AS day FROM range(5000) r(i)"
        )
    return folder


def test_table_in_a_pipe_is_plain_and_whole(tidemill, data):
    wide = "x" * 300
    done = tidemill("sql", f"SELECT id, word, '{wide}' AS wide FROM sales ORDER BY id LIMIT 2")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert [line.split() for line in done.stdout.splitlines()[2:]] == [
        ["0", "even", wide],
        ["1", "NULL", wide],
    ]
    assert done.stderr.startswith("2 rows in ")


def test_table_on_a_terminal_is_drawn_and_values_cannot_steer_it(data):
    tidemill = Path(sys.executable).with_name("tidemill")
    shown = bytearray()

    def keep(terminal: int) -> bytes:
        shown.extend(chunk := os.read(terminal, 65536))
        return chunk

    pty.spawn([str(tidemill), "sql", "SELECT 'a' || chr(27) || '[2J' AS v", "--data", str(data)], keep)
    assert "│ a\\x1b[2J │" in shown.decode()


def test_json_keeps_numbers_exact_and_says_null(tidemill, data):
    done = tidemill("sql", "SELECT * FROM sales WHERE id = 1", "--json")
    assert json.loads(done.stdout) == [{"id": 1, "price": "1.50", "word": None, "day": "2026-01-01"}]


def test_json_is_valid_for_values_that_json_lacks(tidemill, data):
    done = tidemill(
        "sql", "SELECT 'nan'::DOUBLE AS n, 'ab'::BLOB AS b, [1, NULL] AS l, {'d': 1.5} AS s", "--json"
    )
    answer = json.loads(done.stdout, parse_constant=pytest.fail)
    assert answer == [{"n": None, "b": "6162", "l": [1, None], "s": {"d": "1.5"}}]


def test_json_refuses_to_lose_a_column(tidemill, data):
    done = tidemill("sql", "SELECT 1 AS a, 2 AS a", "--json")
    assert done.returncode == 2
    assert "'a'" in done.stderr


def test_csv_has_a_header_and_quotes(tidemill, data):
    done = tidemill("sql", "SELECT 'a,\"b' AS v, NULL AS n UNION ALL SELECT 'c', NULL ORDER BY v", "--csv")
    assert list(csv.reader(done.stdout.splitlines())) == [["v", "n"], ['a,"b', ""], ["c", ""]]


def test_csv_leaves_the_bytes_of_a_value_alone(tidemill, data):
    assert tidemill("sql", "SELECT 'a' || chr(27) || '[1mb' AS v", "--csv").stdout == "v\na\x1b[1mb\n"


def test_rows_are_capped_and_it_says_so(tidemill, data):
    done = tidemill("sql", "SELECT id FROM sales ORDER BY id", "--csv", "--max-rows", "3")
    assert done.stdout.split() == ["id", "0", "1", "2"]
    assert done.stderr.startswith("first 3 rows (more with --max-rows)")


def test_exactly_as_many_rows_as_asked_are_not_called_the_first(tidemill, data):
    done = tidemill("sql", "SELECT id FROM sales WHERE id < 3", "--max-rows", "3")
    assert done.stderr.startswith("3 rows in ")


def test_answer_without_rows_keeps_its_columns(tidemill, data):
    done = tidemill("sql", "SELECT id, word FROM sales WHERE id < 0", "--csv")
    assert (done.stdout, done.stderr[:7]) == ("id,word\n", "0 rows ")


def test_two_formats_are_refused(tidemill, data):
    assert tidemill("sql", "SELECT 1", "--csv", "--json").returncode == 2


@pytest.mark.parametrize("query", ["SELEC 1", "SELECT * FROM nothing", "SELECT 'a'::INT"])
def test_wrong_query_is_one_line_that_says_why(tidemill, data, query):
    done = tidemill("sql", query)
    assert done.returncode == 2
    assert done.stderr.startswith("tidemill: the query failed: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "query", ["DROP TABLE sales", "COPY sales TO 'stolen.csv'", "SELECT * FROM '/etc/passwd'"]
)
def test_queries_cannot_write_or_read_files(tidemill, data, query):
    assert tidemill("sql", query).returncode == 2
    assert not list(data.parent.rglob("stolen.csv"))
    assert tidemill("sql", "SELECT count(*) AS n FROM sales", "--json").stdout == '[{"n": 5000}]\n'


def test_missing_folder_and_missing_warehouse_name_the_next_move(tidemill, tmp_path):
    done = tidemill("sql", "SELECT 1", "--data", "nowhere")
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert "tidemill demo" in done.stderr
    (tmp_path / "empty").mkdir()
    done = tidemill("sql", "SELECT 1", "--data", "empty")
    assert done.returncode == 2
    assert "warehouse.duckdb" in done.stderr


def test_damaged_warehouse_is_an_error_of_the_warehouse(tidemill, data):
    (data / "warehouse.duckdb").write_bytes(b"not a database" * 1000)
    assert tidemill("sql", "SELECT 1").returncode == 5


def test_ready_file_of_a_dead_loader_is_passed_over(tidemill, data):
    dead = subprocess.Popen(["true"])
    dead.wait()
    ready = {"pid": dead.pid, "port": 1, "url": "http://127.0.0.1:1"}
    (data / "loader.json").write_text(json.dumps(ready))
    assert tidemill("sql", "SELECT 1 AS one", "--csv").stdout == "one\n1\n"


def test_ready_file_whose_pid_is_another_process_is_passed_over(tidemill, data):
    with socket.create_server(("127.0.0.1", 0)) as closed_soon:
        port = closed_soon.getsockname()[1]
    ready = {"pid": os.getpid(), "port": port, "url": f"http://127.0.0.1:{port}"}
    (data / "loader.json").write_text(json.dumps(ready))
    assert tidemill("sql", "SELECT 1 AS one", "--csv").stdout == "one\n1\n"


def test_damaged_ready_file_is_named(tidemill, data):
    (data / "loader.json").write_text("{")
    done = tidemill("sql", "SELECT 1")
    assert done.returncode == 4
    assert "loader.json" in done.stderr


def test_running_loader_without_a_readable_token_is_named(tidemill, data):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        (data / "loader.json").write_text(json.dumps({"pid": os.getpid(), "port": 0, "url": url}))
        done = tidemill("sql", "SELECT 1")
    assert done.returncode == 5
    assert "loader.token" in done.stderr


@pytest.fixture
def loader(data: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real loader that owns the warehouse of the folder."""
    create_token(data / "loader.token")
    files = {
        "state": "loader",
        "warehouse": "warehouse.duckdb",
        "token-file": "loader.token",
        "ready-file": "loader.json",
    }
    options = [word for name, file in files.items() for word in (f"--{name}", str(data / file))]
    process = subprocess.Popen([sys.executable, "-m", "tidemill.load.service", *options])
    while not (data / "loader.json").exists():
        assert process.poll() is None
        time.sleep(0.02)
    yield process
    process.terminate()
    process.wait(30)


def test_running_loader_answers_and_the_file_answers_the_same_without_it(tidemill, data, loader):
    query = ("sql", "SELECT * FROM sales ORDER BY id", "--json", "--max-rows", "7")
    asked = tidemill(*query)
    assert asked.returncode == 0, asked.stderr
    assert "from loader at http://127.0.0.1:" in asked.stderr
    loader.terminate()
    loader.wait(30)
    alone = tidemill(*query)
    assert alone.stderr.rstrip().endswith("warehouse.duckdb")
    assert alone.stdout == asked.stdout
    assert len(json.loads(asked.stdout)) == 7


def test_running_loader_refuses_a_wrong_query_with_the_same_code(tidemill, data, loader):
    done = tidemill("sql", "SELECT * FROM nothing")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_file_held_by_a_writer_says_to_wait(tidemill, data):
    with duckdb.connect(str(data / "warehouse.duckdb")):
        done = tidemill("sql", "SELECT 1")
    assert done.returncode == 5
    assert "run it again when the loader is ready" in done.stderr


def test_reader_that_leaves_early_is_no_error_text(data):
    tidemill = Path(sys.executable).with_name("tidemill")
    query = "SELECT repeat('x', 1000) AS x FROM sales"
    pipe = subprocess.Popen(
        [tidemill, "sql", query, "--csv", "--max-rows", "5000", "--data", data],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"]},  # PYTHONUNBUFFERED would hide the broken pipe
    )
    assert pipe.stdout is not None
    assert pipe.stderr is not None
    pipe.stdout.readline()
    pipe.stdout.close()
    assert pipe.wait(30) == 141
    assert pipe.stderr.read() == ""
    pipe.stderr.close()
