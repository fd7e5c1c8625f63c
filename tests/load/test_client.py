"""The client: patient where patience helps, silent about its token, at home in workers."""

import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tidemill.core.errors import LoadError, SpecError
from tidemill.load.client import LoaderClient

from .harness import SALES, TOKEN, InThread, ids_in, load_sales


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A server that gives one raw answer a connection, in turn; b"" hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def http_answer(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (
        status.encode(),
        len(body),
        body,
    )


def test_it_tries_again_after_cuts_429_and_503() -> None:
    busy = http_answer("429 Busy", b'{"code": "busy", "message": "wait", "retryable": true}')
    with answering(
        b"", busy, http_answer("503 Down", b"no json"), http_answer("200 OK", b'{"fence": 3}')
    ) as url:
        assert LoaderClient(url, TOKEN).status("shop") == {"fence": 3}


def test_it_does_not_try_again_what_cannot_help() -> None:
    fenced = (
        b'{"code": "fenced", "message": "old", "next_move": "stop", "retryable": false, "current_fence": 4}'
    )
    with answering(http_answer("409 Conflict", fenced)) as url, pytest.raises(LoadError) as caught:
        LoaderClient(url, TOKEN).status("shop")
    error = caught.value
    assert (error.code, error.current_fence, error.status, error.retryable) == ("fenced", 4, 409, False)
    assert str(error) == "old. Next: stop"


def test_it_follows_no_redirect_with_its_token() -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    with answering(moved) as url, pytest.raises(LoadError) as caught:
        LoaderClient(url, TOKEN).status("shop")
    assert caught.value.status == 302


def test_it_gives_up_at_its_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(LoadError) as caught:
        LoaderClient(f"http://127.0.0.1:{port}", TOKEN, deadline_seconds=0.2).status("shop")
    assert (caught.value.code, caught.value.retryable) == ("loader_unreachable", True)
    assert TOKEN not in repr(pickle.dumps(caught.value))


def test_the_token_shows_nowhere(loader: InThread) -> None:
    stranger = LoaderClient(loader.client.url, "s" * 43)
    with pytest.raises(LoadError) as caught:
        stranger.open("shop", "q1", [SALES])
    assert caught.value.code == "unauthorized"
    assert "s" * 43 not in f"{stranger!r} {caught.value!r} {caught.value.facts}"


def test_a_used_client_pickles_without_its_sockets(loader: InThread) -> None:
    load_sales(loader.client, loader.client.open("shop", "q1", [SALES]), [0])
    copy = pickle.loads(pickle.dumps(loader.client))
    assert copy._pool is None
    assert copy.deadline_seconds == loader.client.deadline_seconds
    assert ids_in(copy) == list(range(10))


def test_a_url_must_be_one() -> None:
    with pytest.raises(SpecError, match="http://host:port"):
        LoaderClient("localhost:8080", TOKEN)
