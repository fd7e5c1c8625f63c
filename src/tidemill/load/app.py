"""HTTP routes of the loader: who may ask, how much at once, and every error as one JSON object."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemill.core.errors import LoadError, TidemillError
from tidemill.core.units import format_bytes
from tidemill.load.engine import LoadEngine
from tidemill.load.messages import (
    ARROW_STREAM,
    MAX_BLOCK_BYTES,
    BlockName,
    CommitRequest,
    OpenRequest,
    Ticket,
    bad_request,
    whole,
    whole_from_text,
)
from tidemill.load.requests import declared_bytes, digest_from, read_body, read_json
from tidemill.load.tokens import TokenCheck


@dataclass(frozen=True)
class HttpLimits:
    """How long and how much a client may ask for."""

    body_seconds: float = 30.0
    uploads_bytes: int = 256 * 10**6
    readers: int = 4
    read_seconds: float = 30.0
    read_rows: int = 1_000_000


class LoaderRoutes:
    """The handlers, with what they share: the engine and what is in flight."""

    def __init__(self, engine: LoadEngine, limits: HttpLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._uploads_bytes = 0
        self._readers = 0

    def routes(self) -> list[Route]:
        return [
            Route("/v1/health", self.health, methods=["GET"]),
            Route("/v1/sql", self.sql, methods=["POST"]),
            Route("/v1/pipelines/{pipeline}", self.status, methods=["GET"]),
            Route("/v1/pipelines/{pipeline}/open", self.open, methods=["POST"]),
            Route("/v1/pipelines/{pipeline}/batches/{batch_id}/commit", self.commit, methods=["POST"]),
            Route(
                "/v1/pipelines/{pipeline}/batches/{batch_id}/blocks/{table}/{block}",
                self.put_block,
                methods=["PUT"],
            ),
        ]

    async def health(self, request: Request) -> Response:  # noqa: ARG002 (starlette's signature)
        down = self._engine.is_down
        return JSONResponse({"status": "down" if down else "ok"}, status_code=503 if down else 200)

    async def status(self, request: Request) -> Response:
        return JSONResponse(self._engine.status(request.path_params["pipeline"]))

    async def open(self, request: Request) -> Response:
        record = await read_json(request, self._limits.body_seconds)
        asked = OpenRequest.from_json(request.path_params["pipeline"], record)
        return JSONResponse(await asyncio.wrap_future(self._engine.open(asked)))

    async def commit(self, request: Request) -> Response:
        record = await read_json(request, self._limits.body_seconds)
        batch_id = whole_from_text("batch_id", request.path_params["batch_id"])
        asked = CommitRequest.from_json(request.path_params["pipeline"], batch_id, record)
        return JSONResponse(await asyncio.wrap_future(await run_in_threadpool(self._engine.commit, asked)))

    async def put_block(self, request: Request) -> Response:
        size_bytes = declared_bytes(request, MAX_BLOCK_BYTES)
        with self._engine.room(size_bytes):
            async with self._upload(size_bytes):
                body = await read_body(request, MAX_BLOCK_BYTES, self._limits.body_seconds)
                return JSONResponse(await self._stage(request, body))

    async def sql(self, request: Request) -> Response:
        record = await read_json(request, self._limits.body_seconds)
        query, max_rows = record.get("sql"), record.get("max_rows", self._limits.read_rows)
        if not isinstance(query, str):
            raise bad_request("sql is missing")
        if self._readers >= self._limits.readers:
            raise _busy(f"{self._readers} reads run already")
        self._readers += 1
        try:
            rows = await run_in_threadpool(
                self._engine.read,
                query,
                max_rows=min(whole("max_rows", max_rows), self._limits.read_rows),
                timeout_seconds=self._limits.read_seconds,
            )
            return Response(await run_in_threadpool(_stream_of, rows), media_type=ARROW_STREAM)
        finally:
            self._readers -= 1

    async def _stage(self, request: Request, body: bytes) -> dict[str, Any]:
        if request.headers.get("content-type") != ARROW_STREAM:
            raise LoadError(
                "the body is not announced as an Arrow stream",
                code="bad_media_type",
                next_move=f"set Content-Type: {ARROW_STREAM}",
                status=415,
            )
        path, query = request.path_params, request.query_params
        fence = whole_from_text("fence", query.get("fence", ""))
        return await run_in_threadpool(
            self._engine.put_block,
            Ticket(path["pipeline"], query.get("query_id", ""), fence),
            whole_from_text("batch_id", path["batch_id"]),
            BlockName.from_label(path["table"], path["block"]),
            body,
            digest=digest_from(request.headers.get("content-digest", "")),
            rows=whole_from_text("X-Row-Count", request.headers.get("x-row-count", "")),
        )

    @asynccontextmanager
    async def _upload(self, size_bytes: int) -> AsyncIterator[None]:
        if self._uploads_bytes + size_bytes > self._limits.uploads_bytes:
            raise _busy(f"uploads of {format_bytes(self._uploads_bytes)} are in flight")
        self._uploads_bytes += size_bytes
        try:
            yield
        finally:
            self._uploads_bytes -= size_bytes


class RequireToken:
    """Lets nobody but bearers of the token past, except to the health page."""

    def __init__(self, app: ASGIApp, check: TokenCheck) -> None:
        self._app = app
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/v1/health":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if self._check.allows(given):
            await self._app(scope, receive, send)
        else:
            refused = LoadError(
                "the request carries no valid token",
                code="unauthorized",
                next_move="give the token that the loader was started with",
                status=401,
            )
            await error_response(refused)(scope, receive, send)


def build_app(engine: LoadEngine, check: TokenCheck, limits: HttpLimits | None = None) -> Starlette:
    """The loader as an ASGI application; closing the engine stays with the caller."""
    return Starlette(
        routes=LoaderRoutes(engine, limits or HttpLimits()).routes(),
        middleware=[Middleware(RequireToken, check=check)],
        exception_handlers={TidemillError: _on_error, HTTPException: _on_http_error, Exception: _on_fault},
    )


def error_response(error: TidemillError) -> JSONResponse:
    """An error as JSON with its HTTP status."""
    status = int(error.facts.get("status", 500))
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if "retry_after_seconds" in error.facts:
        headers["Retry-After"] = str(error.facts["retry_after_seconds"])
    if status in (401, 408, 411, 413, 429):
        headers["Connection"] = "close"  # the body was not read to its end
    own = {
        "code": error.code,
        "message": error.what,
        "next_move": error.next_move,
        "retryable": error.retryable,
    }
    return JSONResponse({**error.facts, **own}, status_code=status, headers=headers)


async def _on_error(request: Request, error: Exception) -> Response:  # noqa: ARG001 (starlette's signature)
    assert isinstance(error, TidemillError)
    return error_response(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return error_response(
        LoadError(what, code="no_such_route", next_move="see the loader's routes", status=error.status_code)
    )


async def _on_fault(request: Request, error: Exception) -> Response:  # noqa: ARG001 (starlette's signature)
    return error_response(
        LoadError(
            f"the loader failed: {type(error).__name__}",
            code="internal",
            next_move="read the loader's log",
            status=500,
        )
    )


def _stream_of(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue().to_pybytes()


def _busy(what: str) -> LoadError:
    return LoadError(
        what,
        code="busy",
        next_move="wait and send again",
        retryable=True,
        status=429,
        retry_after_seconds=1,
    )


__all__ = ["HttpLimits", "build_app", "error_response"]
