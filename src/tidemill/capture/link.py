"""A greeted connection to the receiver."""

import contextlib
import socket

import pyarrow as pa

from tidemill.core.block import Block, schema_fingerprint
from tidemill.core.errors import SourceError, SpecError
from tidemill.core.wire import (
    FRAME_FORMAT,
    Frame,
    Kind,
    bad_frame,
    limit_waits,
    pack_block,
    pack_frame,
    receive_frame,
)

_CONNECT_SECONDS = 5.0


class Link:
    """A connection after hello and welcome: blocks go out, answers come in.

    Attributes:
        last_number: Last block of this source that the log has, 0 for none.
        last_position: Its last position, None for none.
        log_id: Which log the receiver fills.
    """

    def __init__(self, address: tuple[str, int], source: str, schema: pa.Schema) -> None:
        self._socket = socket.create_connection(address, timeout=_CONNECT_SECONDS)
        try:
            hello = {"source": source, "schema": schema_fingerprint(schema), "format": FRAME_FORMAT}
            self._socket.sendall(pack_frame(Kind.HELLO, hello))
            welcome = self._answer(Kind.WELCOME)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)
        limit_waits(self._socket)
        self.last_number: int = welcome.header["last_number"]
        self.last_position: int | None = welcome.header["last_position"]
        self.log_id: str = welcome.header["log_id"]

    def send(self, block: Block) -> None:
        self._socket.sendall(pack_block(block))

    def next_ack(self) -> int:
        """The number of the next acknowledged block; `SourceError` when the receiver refuses."""
        return int(self._answer(Kind.ACK).header["number"])

    def hang_up(self) -> None:
        """End both directions, which wakes a thread that waits for an answer."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _answer(self, expected: Kind) -> Frame:
        frame = receive_frame(self._socket)
        if frame.kind is Kind.REFUSE:
            raise SourceError(
                f"the receiver refuses: {frame.header.get('message')}",
                code=str(frame.header.get("code")),
                retryable=frame.header.get("retryable") is True,
                retry_after_ms=frame.header.get("retry_after_ms", 0),
            )
        if frame.kind is not expected:
            raise bad_frame(f"{frame.kind.name} where {expected.name} belongs")
        return frame


def parse_address(address: str | tuple[str, int]) -> tuple[str, int]:
    """Host and port from "host:port" or a pair.

    >>> parse_address("127.0.0.1:7070")
    ('127.0.0.1', 7070)
    """
    if isinstance(address, tuple):
        return address
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise SpecError(
            f"{address!r} is not an address", code="bad_address", next_move='write it as "host:port"'
        )
    return host, int(port)


__all__ = ["Link", "parse_address"]
