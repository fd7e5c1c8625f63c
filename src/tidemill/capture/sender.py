"""The thread that turns waiting rows into numbered blocks and brings them to the receiver."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import pyarrow as pa

from tidemill.capture.link import Link
from tidemill.capture.rows import Row, to_batch
from tidemill.capture.spool import Spool
from tidemill.capture.waiting import WaitingRows
from tidemill.core.block import MAX_BODY_BYTES, Block, encode_block
from tidemill.core.errors import SourceError, TidemillError

ReadAfter = Callable[[int | None, int], Sequence[Row]]
OnBadRow = Callable[[Row, str], None]

_log = logging.getLogger(__name__)
_READ_ROWS = 1000  # a read of the source becomes one block: catching up is about rows/s, not latency
_PAUSE_NS = 20_000_000  # a block holds the interpreter's lock for about 0.3 ms: at most 1.5 % of the application's time
_FULL_PAUSE_NS = 5_000_000  # at full speed blocks grow instead: 200 a second, not 600, take the lock from it
_BLOCK_GROWTH = 10
_STOP_SECONDS = 3.0
_BIG_BLOCK_BYTES = 8 * 2**20  # rows beyond this are cut into several blocks
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.05, 2.0


class Sender:
    """Everything behind `submit`.

    Numbers come from the welcome alone, so before the first one no block is built. A block, once numbered,
    is sent with the same bytes until a welcome or an acknowledgement settles its number: in memory while
    the connection lives, in the spool else. While the spool holds something all blocks pass through it.

    Fields in the second group are shared and guarded by `lock`; the others belong to the thread.
    """

    def __init__(
        self,
        source: str,
        schema: pa.Schema,
        address: tuple[str, int],
        spool: Spool,
        *,
        block_rows: int,
        block_ms: float,
        window_blocks: int,
        waiting_max_rows: int,
        on_bad_row: OnBadRow | None,
    ) -> None:
        self._source, self._schema, self._address, self._spool = source, schema, address, spool
        self._block_rows, self._block_ns, self._window = block_rows, int(block_ms * 1e6), window_blocks
        self._on_bad_row = on_bad_row
        self._read_after: ReadAfter = lambda _position, _rows: ()
        self._position_index = 0
        self._number, self._log_id, self._built_at_ns = -1, "", 0
        self._retry_at, self._retry_seconds = 0.0, _FIRST_RETRY_SECONDS
        self._thread: threading.Thread | None = None

        self.lock = threading.Lock()
        self.work = threading.Condition(self.lock)
        self.settled = threading.Condition(self.lock)
        self.waiting = WaitingRows(
            max_rows=waiting_max_rows, block_rows=block_rows, most_rows=_BLOCK_GROWTH * block_rows
        )
        self.position: int | None = None
        self.failure: TidemillError | None = None
        self.blocks_sent = self.rows_acked = self.unfit_rows = self.reconnects = self.rows_reread = 0
        self._in_flight: deque[Block] = deque()
        self._link: Link | None = None
        self._lost: Exception | None = None
        self._busy = self._closing = False

    def start(self, read_after: ReadAfter, position_index: int) -> None:
        self._read_after, self._position_index = read_after, position_index
        self._thread = threading.Thread(target=self._run, name=f"tidemill-{self._source}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; unacknowledged blocks stay in the spool."""
        with self.lock:
            self._closing = True
            self.work.notify()
            if self._link:
                self._link.hang_up()
        if self._thread:
            self._thread.join(_STOP_SECONDS)
            if (
                self._thread.is_alive()
            ):  # it waits for an address that does not answer; it holds the spool still
                return
        self._spool.close()

    def is_idle(self) -> bool:
        """Whether all that was submitted is acknowledged; call it under `lock`."""
        return not (
            self._busy or self.waiting.catching_up or self.waiting.rows or self._in_flight or len(self._spool)
        )

    @property
    def spooled_bytes(self) -> int:
        return self._spool.used_bytes

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def _run(self) -> None:
        try:
            while not self._closing and self.failure is None:
                self._step()
        except Exception as error:  # noqa: BLE001 - it must be seen in flush() and stats(), not only by the thread
            self._fail(error)
        self._recover()

    def _step(self) -> None:
        """One bounded piece of work, or a wait for some."""
        with self.lock:
            self._busy = False
            self.settled.notify_all()
            act = self._next_act()
            self._busy = act is not None
        if act is not None:
            act()

    def _next_act(self) -> Callable[[], None] | None:
        now_ns, now = time.perf_counter_ns(), time.monotonic()
        if self._lost is not None:
            return self._recover
        online, away_seconds = self._link is not None, self._retry_at - now
        if not online and away_seconds <= 0:
            return self._connect
        room = online and len(self._in_flight) < self._window
        if room and self._spool.has_unsent:
            return self._send_spooled
        direct = online and not len(self._spool)
        if self.waiting.catching_up:
            if room and direct:
                return self._read_source
            wait_ns = None
        elif not self.waiting.rows or (direct and not room):
            wait_ns = None
        else:
            wait_ns = self._block_ns - (now_ns - self.waiting.first_at_ns)
            if direct and not self._in_flight:
                wait_ns = min(wait_ns, self._built_at_ns + _PAUSE_NS - now_ns)
            if self.waiting.rows >= self._block_rows:
                wait_ns = min(wait_ns, self._built_at_ns + _FULL_PAUSE_NS - now_ns)
            if wait_ns <= 0 or self.waiting.rows >= self.waiting.most_rows:
                return self._build
        limits = [
            seconds for seconds in (None if online else away_seconds, wait_ns and wait_ns / 1e9) if seconds
        ]
        self.work.wait(min(limits, default=None))
        return None

    def _connect(self) -> None:
        try:
            link = Link(self._address, self._source, self._schema)
        except (OSError, SourceError) as error:
            self._back_off(error)
            return
        with self.lock:
            self._settle(link)
            self._link = link
            self.reconnects += 1
        threading.Thread(target=self._take_acks, args=(link,), name="tidemill-acks", daemon=True).start()

    def _settle(self, link: Link) -> None:
        """Take the receiver's word for what it has, and go on behind it."""
        self._spool.rewind()
        if len(self._spool) and self._spool.log_id == link.log_id:
            self.rows_acked += self._spool.drop_acked(link.last_number)
        if len(self._spool):
            if self._spool.log_id == link.log_id and self._spool.first_number == link.last_number + 1:
                self._number, self.position = self._spool.last
                self._log_id = link.log_id
                return
            _log.warning(
                "the spool %s does not connect to the log; its rows are read again", self._spool.path
            )
            self._spool.clear()
        if (self._number, self._log_id) != (link.last_number, link.log_id):
            self._number, self.position, self._log_id = link.last_number, link.last_position, link.log_id
            self.waiting.fall_behind()

    def _take_acks(self, link: Link) -> None:
        """Body of the thread that belongs to one connection."""
        try:
            while True:
                number = link.next_ack()
                with self.lock:
                    if self._link is link:
                        self._acknowledge(number)
        except (OSError, SourceError) as error:
            with self.lock:
                if self._link is link:
                    self._lost = error
                    self.work.notify()

    def _acknowledge(self, number: int) -> None:
        self._retry_seconds = _FIRST_RETRY_SECONDS
        spooled = len(self._spool) > 0
        while self._in_flight and self._in_flight[0].number <= number:
            block = self._in_flight.popleft()
            self.rows_acked += 0 if spooled else block.rows
        if spooled:
            self.rows_acked += self._spool.drop_acked(number)
        if self.waiting.rows or self.waiting.catching_up or len(self._spool):
            self.work.notify()
        else:
            self.settled.notify_all()

    def _recover(self) -> None:
        """After a lost connection: what was in flight goes to the spool, and a new one is tried later."""
        with self.lock:
            error, self._lost, link, self._link = self._lost, None, self._link, None
        self._keep_in_flight()
        if link is not None:
            link.hang_up()
            link.close()
        if error is not None:
            self._back_off(error)

    def _keep_in_flight(self) -> None:
        with self.lock:
            if len(self._spool):
                self._spool.rewind()
            elif not all(self._spool.append(block, self._log_id) for block in self._in_flight):
                self.waiting.fall_behind()  # the rest is read again once a welcome says from where
            self._in_flight.clear()

    def _back_off(self, error: Exception) -> None:
        if isinstance(error, SourceError) and not error.retryable:
            self._fail(error)
            return
        asked = (
            error.retry_after_ms / 1000
            if isinstance(error, SourceError) and error.facts.get("retry_after_ms")
            else 0
        )
        self._retry_at = time.monotonic() + max(self._retry_seconds, asked)
        self._retry_seconds = min(self._retry_seconds * 2, _LAST_RETRY_SECONDS)

    def _send_spooled(self) -> None:
        with self.lock:
            if not self._spool.has_unsent:
                return
            block = self._spool.next_unsent()
            self._in_flight.append(block)
        self._send(block)

    def _read_source(self) -> None:
        """One read behind the last block; a short one twice in a row means that the source is caught up."""
        try:
            rows = self._read_after(self.position, _READ_ROWS)
        except SourceError as error:
            if not error.retryable:
                raise
            time.sleep(_FIRST_RETRY_SECONDS)  # such as a database that is locked for the moment
            return
        if rows:
            self.rows_reread += len(rows)
            self._put(rows)
        if len(rows) < _READ_ROWS:
            with self.lock:
                # first keep what is submitted from now on, then read once more what was not kept
                self.waiting.catching_up, self.waiting.behind = self.waiting.behind, False

    def _build(self) -> None:
        with self.lock:
            self._built_at_ns = time.perf_counter_ns()
            rows = self.waiting.take(self._position_index, self.position, self._built_at_ns)
        if rows:
            self._put(rows)

    def _put(self, rows: Sequence[Row]) -> bool:
        """Number a block and send or spool it; False when its rows must be read again later."""
        batch, unfit = to_batch(rows, self._schema)
        size = 0 if batch is None else batch.nbytes
        if size > _BIG_BLOCK_BYTES and len(rows) > 1:
            half = len(rows) // 2
            return self._put(rows[:half]) and self._put(rows[half:])
        if size > MAX_BODY_BYTES - _BIG_BLOCK_BYTES:
            batch, unfit = None, [(rows[0], f"a row of {size} bytes is too big for a block")]
        last_position = max(row[self._position_index] for row in rows)
        last_position = last_position if self.position is None else max(last_position, self.position)
        if batch is not None and not self._dispatch(batch, last_position):
            return False
        self.position = last_position
        self._report(unfit)
        return True

    def _dispatch(self, batch: pa.RecordBatch, last_position: int) -> bool:
        number = self._number + 1
        block = encode_block(batch, source=self._source, number=number, last_position=last_position)
        with self.lock:
            direct = self._link is not None and not len(self._spool)
            if direct:
                self._in_flight.append(block)
            elif not self._spool.append(block, self._log_id):
                self.waiting.fall_behind()
                return False
            self._number = number
        if direct:
            self._send(block)
        return True

    def _send(self, block: Block) -> None:
        link = self._link
        if link is None:
            return
        try:
            link.send(block)
            self.blocks_sent += 1
        except OSError as error:
            with self.lock:
                self._lost = self._lost or error

    def _report(self, unfit: list[tuple[Row, str]]) -> None:
        for row, reason in unfit:
            self.unfit_rows += 1
            _log.error(
                "a row of %s does not fit the schema and is not sent: %r: %s", self._source, row, reason
            )
            if self._on_bad_row is not None:
                try:
                    self._on_bad_row(row, reason)
                except Exception:  # noqa: BLE001 - the callback's faults must not stop the rows
                    _log.exception("on_bad_row failed for %r", row)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, TidemillError):
            _log.error("the sender of %s failed", self._source, exc_info=error)
            error = SourceError(f"the sender of {self._source} failed: {error!r}", code="sender_failed")
        _log.error("%s is no longer captured: %s", self._source, error)
        with self.lock:
            self.failure = error
            self.waiting.fall_behind()
            self.settled.notify_all()


__all__ = ["OnBadRow", "ReadAfter", "Sender"]
