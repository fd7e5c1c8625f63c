"""Group commit: blocks that arrive while one sync runs are made durable by the next, then acknowledged."""

import logging
import os
import threading
from collections import defaultdict
from dataclasses import dataclass

from tidemill.core.block import Block
from tidemill.core.errors import StoreError
from tidemill.core.wire import FRAME_FORMAT, Kind, pack_frame
from tidemill.staging.log import StagingLog
from tidemill.staging.peer import Peer, refuse
from tidemill.staging.records import entry_length

_log = logging.getLogger(__name__)
PENDING_BYTES = 128 * 2**20  # blocks between socket and disk, all sources together
RETRY_AFTER_MS = 200


@dataclass(frozen=True, slots=True)
class Arrival:
    """A checked block from a peer, or its hello when there is no block."""

    peer: Peer
    block: Block | None = None


class Group:
    """What one commit decided: blocks to append and an answer for each arrival."""

    def __init__(self, room_bytes: int) -> None:
        self.room_bytes = room_bytes
        self.accepted: list[Block] = []
        self.digests: dict[tuple[str, int], bytes] = {}
        self.last_number: dict[str, int] = {}
        self.answers: defaultdict[Peer, list[bytes | int]] = defaultdict(
            list
        )  # a number: its ack, once synced
        self.welcomes: list[Peer] = []

    def accept(self, block: Block) -> None:
        self.accepted.append(block)
        self.digests[block.source, block.number] = block.digest
        self.last_number[block.source] = block.number
        self.room_bytes -= entry_length(block)


class Appender:
    """The one thread that writes to the log and judges block numbers.

    A hello goes through the same queue as blocks. So when a source connects anew, everything that its older
    connection had brought is either in the log before the welcome, or refused for good.
    """

    def __init__(self, log: StagingLog) -> None:
        self._log = log
        self._wake = threading.Condition()
        self._arrivals: list[Arrival] = []
        self._pending_bytes = 0
        self._stopping = False
        self._live: dict[str, Peer] = {}
        self._thread = threading.Thread(target=self._run, name="tidemill-appender", daemon=True)
        self._thread.start()

    def put(self, arrival: Arrival) -> None:
        """Queue an arrival; waits while too many bytes are queued, which in turn slows the peer down."""
        size = len(arrival.block.body) if arrival.block else 0
        with self._wake:
            self._wake.wait_for(
                lambda: self._pending_bytes == 0 or self._pending_bytes + size <= PENDING_BYTES
            )
            self._arrivals.append(arrival)
            self._pending_bytes += size
            self._wake.notify_all()

    def stop(self) -> None:
        """Finish what was queued and end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            while arrivals := self._take():
                self._commit(arrivals)
        except BaseException:  # noqa: BLE001 - whatever it was, the process must not go on
            # without its only writer the process would accept blocks and never answer
            _log.critical("the appender died, so the receiver ends", exc_info=True)
            logging.shutdown()
            os._exit(70)

    def _take(self) -> list[Arrival]:
        with self._wake:
            self._wake.wait_for(lambda: self._arrivals or self._stopping)
            arrivals, self._arrivals, self._pending_bytes = self._arrivals, [], 0
            self._wake.notify_all()
        return arrivals

    def _commit(self, arrivals: list[Arrival]) -> None:
        needed = sum(entry_length(arrival.block) for arrival in arrivals if arrival.block)
        if needed > self._log.room_bytes:
            self._log.trim()
        group = Group(self._log.room_bytes)
        for arrival in arrivals:
            if arrival.block is None:
                self._greet(arrival.peer, group)
            else:
                self._judge(arrival.peer, arrival.block, group)
        failure = self._append(group)
        for peer in group.welcomes:
            peer.answer(self._welcome(peer.source))
        for peer, answers in group.answers.items():
            frames = (failure or _ack(answer) if isinstance(answer, int) else answer for answer in answers)
            peer.answer(b"".join(frames))

    def _greet(self, peer: Peer, group: Group) -> None:
        older = self._live.get(peer.source)
        if older is not None:
            older.answer(refuse("replaced", f"{peer.source} has connected anew", retryable=False))
            older.hang_up()
        self._live[peer.source] = peer
        group.welcomes.append(peer)

    def _welcome(self, source: str) -> bytes:
        number, position = self._log.last_block(source) or (0, None)
        return pack_frame(
            Kind.WELCOME,
            {
                "last_number": number,
                "last_position": position,
                "log_id": self._log.log_id,
                "format": FRAME_FORMAT,
            },
        )

    def _judge(self, peer: Peer, block: Block, group: Group) -> None:
        """Accept the next number, acknowledge a repeat, refuse the rest."""
        source, number, size = block.source, block.number, entry_length(block)
        if self._live.get(source) is not peer:
            return  # replaced: it was told so and cut off
        last = group.last_number.get(source, (self._log.last_block(source) or (0, 0))[0])
        if number < 1 or number > last + 1:
            message = f"block {number} of {source} came where {last + 1} belongs"
            answer = refuse("out_of_order", message, retryable=True, expected_number=last + 1)
        elif number <= last:
            known = group.digests.get((source, number)) or self._log.recent_digest(source, number)
            if known in (None, block.digest):
                group.answers[peer].append(number)
                return
            message = f"block {number} of {source} is in the log with another content"
            _log.error("digest conflict: %s", message)
            answer = refuse("digest_conflict", message, retryable=False, number=number)
        elif size > self._log.max_bytes:
            message = f"block {number} of {source} is bigger than the whole queue"
            answer = refuse("over_queue", message, retryable=False, number=number)
        elif size > group.room_bytes:
            message = f"the staging log is full ({self._log.max_bytes} bytes)"
            answer = refuse("queue_full", message, retryable=True, retry_after_ms=RETRY_AFTER_MS)
        else:
            group.accept(block)
            group.answers[peer].append(number)
            return
        group.answers[peer].append(answer)

    def _append(self, group: Group) -> bytes | None:
        """Make the accepted blocks durable; the refusal for all of them when the disk has no room."""
        segment = self._log.segment_first
        try:
            if group.accepted:
                self._log.append(group.accepted)
        except StoreError as error:
            if not error.retryable:
                raise
            _log.warning("blocks were refused: %s", error)
            return refuse(error.code, str(error), retryable=True, retry_after_ms=RETRY_AFTER_MS)
        if self._log.segment_first != segment:
            self._log.trim()
        return None


def _ack(number: int) -> bytes:
    return pack_frame(Kind.ACK, {"number": number})


__all__ = ["PENDING_BYTES", "RETRY_AFTER_MS", "Appender", "Arrival"]
