"""The wire: tokens, limits, stalls, cuts and hostile requests."""

import http.client
import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidemill.core.errors import LoadError
from tidemill.load.app import HttpLimits
from tidemill.load.client import LoaderClient, TableSpec, Ticket
from tidemill.load.heads import BoundedHeads

from .harness import SALES, TOKEN, InThread, ids_in, load_sales, loader_in_thread, put_sales, sales

BEARER = {"Authorization": f"Bearer {TOKEN}"}
BLOCK = "/v1/pipelines/shop/batches/0/blocks/sales/0-0-0?query_id=q1&fence=1"
BLOCK_HEADERS = {
    **BEARER,
    "Content-Type": "application/vnd.apache.arrow.stream",
    "Content-Digest": "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:",
    "X-Row-Count": "1",
}


def call(
    loader: InThread, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", loader.port, timeout=20)
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


ROUTES = [
    ("GET", "/v1/pipelines/shop"),
    ("POST", "/v1/pipelines/shop/open"),
    ("POST", "/v1/pipelines/shop/batches/0/commit"),
    ("PUT", BLOCK),
    ("POST", "/v1/sql"),
    ("GET", "/v1/anything"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Bearer ", f"Basic {TOKEN}", TOKEN])
def test_every_route_needs_the_token(
    reading_loader: InThread, method: str, path: str, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    status, answer = call(reading_loader, method, path, b"{}", headers)
    assert (status, answer["code"]) == (401, "unauthorized")
    assert TOKEN not in json.dumps(answer)


def test_health_needs_none_and_tells_nothing(reading_loader: InThread) -> None:
    assert call(reading_loader, "GET", "/v1/health") == (200, {"status": "ok"})


def test_unknown_routes_are_json_errors(reading_loader: InThread) -> None:
    assert call(reading_loader, "GET", "/v1/nowhere", headers=BEARER)[1]["code"] == "no_such_route"
    assert call(reading_loader, "DELETE", "/v1/sql", headers=BEARER)[0] == 405


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/pipelines/shop/open", b"no json"),
        ("/v1/pipelines/shop/open", b"[" * 200_000),
        ("/v1/pipelines/shop/open", b"[]"),
        ("/v1/pipelines/shop/open", b"{}"),
        ("/v1/pipelines/shop/open", b'{"query_id": "q1", "tables": [{"name": "t", "schema": "AAAA"}]}'),
        ("/v1/pipelines/shop/open", b'{"query_id": "q1", "tables": [{"name": "t", "schema": 7}]}'),
        ("/v1/pipelines/shop/open", b'{"query_id": "../q", "tables": []}'),
        ("/v1/pipelines/shop/open", b'{"query_id": "q1", "tables": [], "resume_from": "0"}'),
        ("/v1/pipelines/shop/open", b'{"query_id": "q1", "tables": [], "reset": 1}'),
        ("/v1/pipelines/.hidden/open", b'{"query_id": "q1", "tables": []}'),
        ("/v1/pipelines/shop/batches/-1/commit", b"{}"),
        ("/v1/pipelines/shop/batches/0/commit", b'{"query_id": "q1", "fence": true, "blocks": []}'),
        ("/v1/pipelines/shop/batches/2/commit", b'{"query_id":"q1","fence":1,"start":9,"end":8,"blocks":[]}'),
        (
            "/v1/pipelines/shop/batches/2/commit",
            b'{"query_id":"q1","fence":1,"start":8,"end":9,"blocks":[7]}',
        ),
        ("/v1/sql", b"{}"),
        ("/v1/sql", b'{"sql": "SELECT 1", "max_rows": -1}'),
    ],
)
def test_malformed_requests_are_422(reading_loader: InThread, path: str, body: bytes) -> None:
    status, answer = call(reading_loader, "POST", path, body, BEARER)
    assert (status, answer["retryable"]) == (422, False)
    assert answer["code"] in ("bad_request", "bad_name")
    assert reading_loader.client.status("shop")["fence"] == 1


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (BLOCK, {"Content-Type": "text/plain"}, 415),
        (BLOCK, {"Content-Digest": "sha-256=:AAAA:"}, 422),
        (BLOCK, {"Content-Digest": "md5=:AAAA:"}, 422),
        (BLOCK, {"X-Row-Count": "-1"}, 422),
        (BLOCK, {"X-Row-Count": "1e3"}, 422),
        (BLOCK, {"Content-Length": "64000001"}, 413),
        (BLOCK.replace("0-0-0", "0-0"), {}, 422),
        (BLOCK.replace("0-0-0", "0-0-x"), {}, 422),
        (BLOCK.replace("0-0-0", "..%2F..%2Fx"), {}, 404),
        (BLOCK.replace("sales", "..%2e"), {}, 422),
        (BLOCK.replace("sales", "a%00b"), {}, 422),
        (BLOCK.replace("fence=1", "fence="), {}, 422),
    ],
)
def test_malformed_blocks_are_refused(
    tmp_path: Path, path: str, headers: dict[str, str], status: int
) -> None:
    with loader_in_thread(tmp_path) as loader:
        loader.client.open("shop", "q1", [SALES])
        assert call(loader, "PUT", path, b"", {**BLOCK_HEADERS, **headers})[0] == status
        assert loader.client.status("shop")["staged_blocks"] == 0


def test_a_wrong_digest_is_found(loader: InThread) -> None:
    loader.client.open("shop", "q1", [SALES])
    status, answer = call(loader, "PUT", BLOCK, b"not the empty body", BLOCK_HEADERS)
    assert (status, answer["code"]) == (422, "digest_mismatch")


def test_hostile_names_stay_names(loader: InThread) -> None:
    columns = ['a"; DROP TABLE sales; --', "select", "at", "ключ", "' OR 1=1"]
    load_sales(loader.client, loader.client.open("shop", "q1", [SALES]), [0])
    hostile = TableSpec(
        "drop-table.sales", pa.schema([(name, pa.int64()) for name in columns]), "add", (columns[0],)
    )
    opened = loader.client.open("mall", "q2", [hostile])
    rows = pa.table([[1], [2], [3], [4], [5]], schema=hostile.schema)
    for batch_id in (0, 1):
        ref = loader.client.put_block(
            opened.ticket, batch_id, hostile.name, rows, partition=0, attempt=0, number=0
        )
        loader.client.commit(opened.ticket, batch_id, start=batch_id, end=batch_id + 1, blocks=[ref])
    found = loader.client.sql('SELECT * FROM "drop-table.sales"')
    assert found.to_pylist() == [dict(zip(columns, [1, 4, 6, 8, 10], strict=True))]
    assert ids_in(loader.client) == list(range(10))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", 'a"b', "x" * 129, "a\n", "é", "a\0"])
def test_names_outside_the_pattern_are_refused(name: str) -> None:
    with pytest.raises(LoadError, match="is no table name"):
        TableSpec(name, SALES.schema)
    with pytest.raises(LoadError, match="is no pipeline name"):
        Ticket(name, "q1", 1)


def test_a_stalled_upload_is_dropped_and_gives_its_room_back(tmp_path: Path) -> None:
    with loader_in_thread(tmp_path, HttpLimits(body_seconds=0.3), staging_bytes=60_000) as loader:
        opened = loader.client.open("shop", "q1", [SALES])
        with socket.create_connection(("127.0.0.1", loader.port), timeout=20) as stalled:
            head = [f"PUT {BLOCK} HTTP/1.1", "Host: x", "Content-Length: 59000"]
            head += [f"{name}: {value}" for name, value in BLOCK_HEADERS.items()]
            stalled.sendall("\r\n".join([*head, "", "only this"]).encode())
            answer = b""
            while chunk := stalled.recv(4096):
                answer += chunk
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"upload_stalled" in answer
        put_sales(loader.client, opened.ticket, 0, sales(0, 1000))


def test_uploads_cut_in_the_middle_leave_nothing(loader: InThread) -> None:
    opened = loader.client.open("shop", "q1", [SALES])
    for sent in range(0, 50, 7):
        with socket.create_connection(("127.0.0.1", loader.port), timeout=20) as cut:
            head = [f"PUT {BLOCK} HTTP/1.1", "Host: x", "Content-Length: 50"]
            head += [f"{name}: {value}" for name, value in BLOCK_HEADERS.items()]
            cut.sendall("\r\n".join([*head, "", ""]).encode() + b"x" * sent)
    load_sales(loader.client, opened, [0])
    assert ids_in(loader.client) == list(range(10))


def test_full_staging_is_a_429_until_a_commit_makes_room(tmp_path: Path) -> None:
    with loader_in_thread(tmp_path, staging_bytes=30_000) as loader:
        opened = loader.client.open("shop", "q1", [SALES])
        first = put_sales(loader.client, opened.ticket, 0, sales(0, 1000))
        impatient = LoaderClient(loader.client.url, TOKEN, deadline_seconds=0.1)
        with pytest.raises(LoadError) as caught:
            put_sales(impatient, opened.ticket, 0, sales(0, 1000), attempt=1)
        assert (caught.value.code, caught.value.status, caught.value.retryable) == ("staging_full", 429, True)
        loader.client.commit(opened.ticket, 0, start=0, end=1000, blocks=[first])
        put_sales(loader.client, opened.ticket, 1, sales(1000, 1000))


def test_uploads_in_flight_are_bounded(tmp_path: Path) -> None:
    with loader_in_thread(tmp_path, HttpLimits(uploads_bytes=100)) as loader:
        opened = loader.client.open("shop", "q1", [SALES])
        loader.client.deadline_seconds = 0.1
        with pytest.raises(LoadError, match="in flight"):
            put_sales(loader.client, opened.ticket, 0, sales(0, 10))


def test_a_body_without_length_is_refused(loader: InThread) -> None:
    headers = {**BLOCK_HEADERS, "Transfer-Encoding": "chunked"}
    assert call(loader, "PUT", BLOCK, b"0\r\n\r\n", headers)[0] == 411


def hung_up(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except ConnectionError:
        return True


def test_an_endless_head_is_cut_off(loader: InThread) -> None:
    with socket.create_connection(("127.0.0.1", loader.port), timeout=20) as endless:
        endless.sendall(b"GET /v1/health HTTP/1.1\r\nX-Long: ")
        with suppress(ConnectionError):
            for _ in range(1000):
                endless.sendall(b"x" * 10_000)
        assert hung_up(endless)
    assert call(loader, "GET", "/v1/health")[0] == 200


@pytest.mark.parametrize("sent", [b"", b"GET /v1/health HTTP/1.1\r\nHost:"])
def test_a_head_that_does_not_come_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(BoundedHeads, "head_seconds", 0.2)
    with loader_in_thread(tmp_path) as loader:
        with socket.create_connection(("127.0.0.1", loader.port), timeout=20) as slow:
            slow.sendall(sent)
            assert hung_up(slow)
        load_sales(loader.client, loader.client.open("shop", "q1", [SALES]), [0, 1])
