"""What an HTTP request carries: bodies bounded in time and size, headers that say what they should."""

import asyncio
import base64
import binascii
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from tidemill.core.errors import LoadError
from tidemill.core.units import format_bytes
from tidemill.load.messages import bad_request, whole_from_text

_MAX_JSON_BYTES = 8 * 10**6


def declared_bytes(request: Request, limit_bytes: int) -> int:
    """Content-Length, refused while nothing of the body has been read."""
    text = request.headers.get("content-length")
    if text is None:
        raise LoadError("Content-Length is missing", code="bad_request", next_move="send it", status=411)
    size_bytes = whole_from_text("Content-Length", text)
    if size_bytes > limit_bytes:
        raise _too_big(size_bytes, limit_bytes)
    return size_bytes


async def read_body(request: Request, limit_bytes: int, timeout_seconds: float) -> bytes:
    """The whole body; uvicorn itself would wait for a stalled one for ever."""
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit_bytes:
                    raise _too_big(len(body), limit_bytes)
    except TimeoutError:
        raise LoadError(
            f"the body did not come within {timeout_seconds:g} s ({len(body):,} bytes came)",
            code="upload_stalled",
            next_move="send it again",
            retryable=True,
            status=408,
        ) from None
    except ClientDisconnect:
        raise LoadError(
            "the client left in the middle of its body", code="client_left", retryable=True, status=400
        ) from None
    return bytes(body)


async def read_json(request: Request, timeout_seconds: float) -> dict[str, Any]:
    """The JSON object in the body."""
    declared_bytes(request, _MAX_JSON_BYTES)
    try:
        record = json.loads(await read_body(request, _MAX_JSON_BYTES, timeout_seconds))
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {type(error).__name__}") from error
    if not isinstance(record, dict):
        raise bad_request("the body is not a JSON object")
    return record


def digest_from(header: str) -> str:
    """Hex of `sha-256=:base64:` (RFC 9530)."""
    prefix, suffix = "sha-256=:", ":"
    try:
        raw = base64.b64decode(header.removeprefix(prefix).removesuffix(suffix), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not header.startswith(prefix) or len(raw) != 32:
        raise bad_request("Content-Digest is not sha-256=:base64:")
    return raw.hex()


def _too_big(size_bytes: int, limit_bytes: int) -> LoadError:
    return LoadError(
        f"a body of {format_bytes(size_bytes)} is over the limit of {format_bytes(limit_bytes)}",
        code="too_big",
        next_move="send smaller blocks",
        status=413,
        limit_bytes=limit_bytes,
    )


__all__ = ["declared_bytes", "digest_from", "read_body", "read_json"]
