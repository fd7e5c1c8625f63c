"""One connection of a source, as the receiver sees it."""

import contextlib
import socket
import threading
from typing import Any

from tidemill.core.wire import Kind, limit_waits, pack_frame

_PARTING_SECONDS = 1.0


class Peer:
    """A socket that never makes its sender wait: a peer that does not read its answers is cut off.

    Answers come from the one thread that appends for all sources, so one stalled peer must not hold it.
    """

    def __init__(self, link: socket.socket, source: str = "") -> None:
        self.link = limit_waits(link)
        self.source = source
        self._lock = threading.Lock()

    def answer(self, content: bytes) -> None:
        with self._lock, contextlib.suppress(OSError):
            sent = -1
            try:
                sent = self.link.send(content, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            finally:
                if sent != len(content):
                    self.hang_up()

    def hang_up(self) -> None:
        """End both directions; the thread that reads from the socket then closes it."""
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)

    def part(self, last_words: bytes) -> None:
        """Send a last answer and read on for a moment: closing over unread bytes would discard the answer."""
        self.answer(last_words)
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_WR)
            self.link.settimeout(_PARTING_SECONDS)
            while self.link.recv(2**16):
                pass


def refuse(code: str, message: str, *, retryable: bool, **facts: Any) -> bytes:
    return pack_frame(Kind.REFUSE, {"code": code, "message": message, "retryable": retryable, **facts})


__all__ = ["Peer", "refuse"]
