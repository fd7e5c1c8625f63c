"""Frames: the one form in which blocks and answers travel over TCP and rest in a spool."""

import json
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import google_crc32c

from tidemill.core.block import MAX_BODY_BYTES, Block
from tidemill.core.errors import SourceError

FRAME_FORMAT = 1
MAX_HEADER_BYTES = 64 * 2**10
_MAGIC = b"TMWF"
_PREFIX = struct.Struct("<4sBBHII")  # magic, format, kind, zero, header bytes, body bytes
_CRC = struct.Struct("<I")  # over prefix and header; the digest in the header covers a block's body
PREFIX_BYTES = _PREFIX.size + _CRC.size


class Kind(IntEnum):
    HELLO = 1
    WELCOME = 2
    BLOCK = 3
    ACK = 4
    REFUSE = 5


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    header: dict[str, Any]
    body: bytes = field(default=b"", repr=False)


def pack_frame(kind: Kind, header: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    prefix = _PREFIX.pack(_MAGIC, FRAME_FORMAT, kind, 0, len(text), len(body))
    return b"".join((prefix, _CRC.pack(google_crc32c.value(prefix + text)), text, body))


def pack_block(block: Block) -> bytes:
    header = {
        "source": block.source,
        "number": block.number,
        "rows": block.rows,
        "last_position": block.last_position,
        "digest": block.digest.hex(),
    }
    return pack_frame(Kind.BLOCK, header, block.body)


def block_of(frame: Frame) -> Block:
    """The block in a frame; its fields have the right types, its body is not looked at yet."""
    header = frame.header
    numbers = [header.get(name) for name in ("number", "rows", "last_position")]
    texts = [header.get(name) for name in ("source", "digest")]
    if any(type(n) is not int or abs(n) >= 2**63 for n in numbers) or any(type(t) is not str for t in texts):
        raise bad_frame("a block header lacks fields or has some of another type")
    try:
        digest = bytes.fromhex(header["digest"])
    except ValueError as error:
        raise bad_frame("a digest is not hexadecimal") from error
    return Block(
        header["source"], header["number"], header["rows"], header["last_position"], frame.body, digest
    )


def read_frame(read_exactly: Callable[[int], bytes]) -> Frame:
    """The next frame from a source of bytes; sizes are checked before anything of that size is read."""
    start = read_exactly(PREFIX_BYTES)
    magic, version, kind, _, header_bytes, body_bytes = _PREFIX.unpack_from(start)
    if magic != _MAGIC or version != FRAME_FORMAT:
        raise bad_frame(f"magic {magic!r} and format {version} where {_MAGIC!r} and {FRAME_FORMAT} belong")
    if header_bytes > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
        raise bad_frame(f"a header of {header_bytes} and a body of {body_bytes} bytes are too big")
    text = read_exactly(header_bytes)
    if google_crc32c.value(start[: _PREFIX.size] + text) != _CRC.unpack_from(start, _PREFIX.size)[0]:
        raise bad_frame("the header does not match its checksum")
    try:
        header = json.loads(text)
        known_kind = Kind(kind)
    except (ValueError, RecursionError) as error:
        raise bad_frame(f"kind {kind} or its header is unknown: {error}") from error
    if not isinstance(header, dict):
        raise bad_frame("the header is not an object")
    return Frame(known_kind, header, read_exactly(body_bytes))


def limit_waits(link: socket.socket, seconds: int = 30) -> socket.socket:
    """The socket, whose single reads and writes now give up after so long, and whose small frames leave at once.

    The kernel's limits, not `settimeout`: that would turn reads and writes of other threads into polls.
    """
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        link.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def receive_frame(link: socket.socket, *, frame_seconds: float = 30.0) -> Frame:
    """The next frame from a socket: waits for its start without limit, then for the rest at most so long."""
    begun: float | None = None

    def read_exactly(count: int) -> bytes:
        nonlocal begun
        content = bytearray(count)
        view, done = memoryview(content), 0
        while done < count:
            try:
                received = link.recv_into(view[done:])
            except BlockingIOError:  # the limit of `limit_waits`
                received = -1
            if received == 0:
                raise ConnectionResetError("the other side closed the connection")
            if begun is not None and time.monotonic() - begun > frame_seconds:
                raise bad_frame(f"it did not arrive within {frame_seconds:.0f} s")
            if received > 0:
                begun = begun or time.monotonic()
                done += received
        return bytes(content)

    return read_frame(read_exactly)


def bad_frame(what: str) -> SourceError:
    return SourceError(f"bad frame: {what}", code="bad_frame", next_move="use the same release on both sides")


__all__ = [
    "FRAME_FORMAT",
    "PREFIX_BYTES",
    "Frame",
    "Kind",
    "bad_frame",
    "block_of",
    "limit_waits",
    "pack_block",
    "pack_frame",
    "read_frame",
    "receive_frame",
]
