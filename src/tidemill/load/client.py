"""The loader as seen by drivers and tasks: calls that may be repeated until they succeed."""

import base64
import hashlib
import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlencode

import pyarrow as pa
import urllib3

from tidemill.core.errors import LoadError, SpecError
from tidemill.load.messages import (
    ARROW_STREAM,
    MAX_BLOCK_BYTES,
    MAX_BLOCK_ROWS,
    BlockName,
    BlockRef,
    CommitRequest,
    OpenRequest,
    Ticket,
)
from tidemill.load.names import check_name
from tidemill.load.tables import TableSpec
from tidemill.load.tokens import create_token, read_token

_RETRIED_STATUSES = (408, 429, 502, 503, 504)
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 35.0


@dataclass(frozen=True)
class OpenedPipeline:
    """Where the warehouse stands, and the ticket to write on from there."""

    ticket: Ticket
    last_batch_id: int | None
    position: int | None
    last_commit: dict[str, Any] | None


@dataclass(frozen=True)
class Committed:
    """A batch that readers see; `already` if an earlier try had done it."""

    status: Literal["committed", "already"]
    batch_id: int
    start: int
    end: int
    rows: dict[str, int]
    counts: dict[str, int]
    visible_at_ns: int


class LoaderClient:
    """Calls of the loader with keep-alive and retries; cheap to make, and pickles without its sockets."""

    def __init__(self, url: str, token: str, *, deadline_seconds: float = 60.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise SpecError(
                f"{url!r} is no URL of a loader", code="bad_url", next_move="write http://host:port"
            )
        self.url = url.rstrip("/")
        self.deadline_seconds = deadline_seconds
        self._token = token
        self._pool: urllib3.PoolManager | None = None
        self._pool_pid = 0
        self._random = random.Random()  # noqa: S311 (spreads retries, guards nothing)

    def __repr__(self) -> str:
        return f"LoaderClient({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (self.url, self._token, self.deadline_seconds)

    def open(
        self,
        pipeline: str,
        query_id: str,
        tables: Sequence[TableSpec],
        *,
        resume_from: int | None = None,
        reset: bool = False,
    ) -> OpenedPipeline:
        """Take the pipeline over: tables exist after it, and every earlier ticket is void."""
        request = OpenRequest(pipeline, query_id, tuple(tables), resume_from, reset)
        answer = self._json("POST", f"/v1/pipelines/{pipeline}/open", request.to_json())
        ticket = Ticket(pipeline, answer["query_id"], answer["fence"])
        return OpenedPipeline(ticket, answer["last_batch_id"], answer["position"], answer["last_commit"])

    def put_block(
        self,
        ticket: Ticket,
        batch_id: int,
        table: str,
        rows: pa.Table | pa.RecordBatch,
        *,
        partition: int,
        attempt: int,
        number: int,
    ) -> BlockRef:
        """Stage rows of one task; the answer goes to the driver, who lists it in the commit."""
        name = BlockName(table, partition, attempt, number)
        body = _stream_of(rows)
        if body.size > MAX_BLOCK_BYTES or rows.num_rows > MAX_BLOCK_ROWS:
            raise LoadError(
                f"a block of {rows.num_rows:,} rows and {body.size:,} bytes is over the limit of "
                f"{MAX_BLOCK_ROWS:,} rows and {MAX_BLOCK_BYTES:,} bytes",
                code="too_big",
                next_move="send smaller blocks",
                status=413,
            )
        digest = hashlib.sha256(body)
        where = f"/v1/pipelines/{ticket.pipeline}/batches/{batch_id}/blocks/{table}/{name.label}"
        query = urlencode({"query_id": ticket.query_id, "fence": ticket.fence})
        headers = {
            "Content-Type": ARROW_STREAM,
            "Content-Digest": f"sha-256=:{base64.b64encode(digest.digest()).decode()}:",
            "X-Row-Count": str(rows.num_rows),
        }
        self._call("PUT", f"{where}?{query}", body.to_pybytes(), headers)
        return BlockRef(table, partition, attempt, number, digest.hexdigest(), rows.num_rows)

    def commit(
        self,
        ticket: Ticket,
        batch_id: int,
        *,
        start: int,
        end: int,
        blocks: Sequence[BlockRef],
        counts: Mapping[str, int] | None = None,
    ) -> Committed:
        """Make the batch visible in all its tables at once; exactly once however often it is called."""
        request = CommitRequest(ticket, batch_id, start, end, tuple(blocks), counts or {})
        where = f"/v1/pipelines/{ticket.pipeline}/batches/{batch_id}/commit"
        answer = self._json("POST", where, request.to_json())
        return Committed(**{name: answer[name] for name in Committed.__dataclass_fields__})

    def status(self, pipeline: str) -> dict[str, Any]:
        """Fence, position, last commit and staged blocks of a pipeline."""
        return self._json("GET", f"/v1/pipelines/{quote(check_name('pipeline', pipeline))}", None)

    def sql(self, query: str, max_rows: int = 10_000) -> pa.Table:
        """The first `max_rows` rows of a query that cannot write."""
        body = json.dumps({"sql": query, "max_rows": max_rows}).encode()
        answer = self._call("POST", "/v1/sql", body, {"Content-Type": "application/json"})
        return pa.ipc.open_stream(answer).read_all()

    def _json(self, method: str, where: str, record: dict[str, Any] | None) -> dict[str, Any]:
        body = None if record is None else json.dumps(record).encode()
        answer: dict[str, Any] = json.loads(
            self._call(method, where, body, {"Content-Type": "application/json"})
        )
        return answer

    def _call(self, method: str, where: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        """The answer's body; tries again while trying again can help and time is left."""
        give_up_at = time.monotonic() + self.deadline_seconds
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            wait_seconds = 0.0
            try:
                response = self._send(method, where, body, headers, give_up_at - time.monotonic())
            except urllib3.exceptions.HTTPError as error:
                failure = _unreachable(self.url, error)
            else:
                if response.status == 200:
                    return response.data
                failure = _error_of(response)
                if response.status not in _RETRIED_STATUSES:
                    raise failure
                wait_seconds = float(failure.facts.get("retry_after_seconds", 0))
            # Half of a told wait already spreads the senders; the rest is chance.
            pause = max(wait_seconds, pause_seconds) * self._random.uniform(0.5, 1.0)
            if time.monotonic() + pause >= give_up_at:
                raise failure
            time.sleep(pause)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _send(
        self, method: str, where: str, body: bytes | None, headers: dict[str, str], left_seconds: float
    ) -> urllib3.BaseHTTPResponse:
        left_seconds = max(left_seconds, 0.1)
        return self._connections().request(
            method,
            self.url + where,
            body=body,
            headers={**headers, "Authorization": f"Bearer {self._token}"},
            timeout=urllib3.Timeout(
                connect=min(_CONNECT_SECONDS, left_seconds), read=min(_ANSWER_SECONDS, left_seconds)
            ),
            retries=False,
            redirect=False,
        )

    def _connections(self) -> urllib3.PoolManager:
        # Sockets must not be shared with a forked process, and Spark's daemon forks its workers.
        if self._pool is None or self._pool_pid != os.getpid():
            self._pool, self._pool_pid = urllib3.PoolManager(maxsize=8), os.getpid()
        return self._pool


def _revive(url: str, token: str, deadline_seconds: float) -> LoaderClient:
    return LoaderClient(url, token, deadline_seconds=deadline_seconds)


def _stream_of(rows: pa.Table | pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write(rows)
    return sink.getvalue()


def _error_of(response: urllib3.BaseHTTPResponse) -> LoadError:
    """The loader's error as it was raised there."""
    try:
        facts = dict(json.loads(response.data))
        what, code = str(facts.pop("message")), str(facts.pop("code"))
    except (ValueError, TypeError, KeyError):
        what, code, facts = f"the loader answered {response.status}", "http_error", {}
    facts["status"] = response.status
    retryable = bool(facts.pop("retryable", response.status in _RETRIED_STATUSES))
    next_move = str(facts.pop("next_move", ""))
    facts.pop("what", None)
    return LoadError(what, code=code, next_move=next_move, retryable=retryable, **facts)


def _unreachable(url: str, error: Exception) -> LoadError:
    return LoadError(
        f"the loader at {url} does not answer: {type(error).__name__}",
        code="loader_unreachable",
        next_move="check that it runs and that the address is right",
        retryable=True,
        url=url,
    )


__all__ = [
    "BlockRef",
    "Committed",
    "LoaderClient",
    "OpenedPipeline",
    "TableSpec",
    "Ticket",
    "create_token",
    "read_token",
]
