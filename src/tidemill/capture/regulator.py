"""The papers' SFlowR: rows of one source leave it in blocks, at almost no cost for the application."""

import atexit
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidemill.capture.link import parse_address
from tidemill.capture.rows import Row
from tidemill.capture.sender import OnBadRow, ReadAfter, Sender
from tidemill.capture.spool import Spool
from tidemill.core.block import check_plain_schema
from tidemill.core.errors import InternalError

_EXIT_FLUSH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RegulatorStats:
    """Counts since the start.

    Attributes:
        rows_submitted: Rows handed over by the hook.
        rows_acked: Rows in the staging log, spooled ones of a previous life included.
        rows_reread: Rows read from the source by position instead of handed over.
        unfit_rows: Rows that did not fit the schema; logged and given to `on_bad_row`, not sent.
        waiting_rows: Rows in memory and in no block yet.
        behind: Rows submitted now are not kept in memory, since the source will be read again.
        submit_seconds: Time that `submit` took from the application, all calls together.
    """

    rows_submitted: int
    rows_acked: int
    rows_reread: int
    unfit_rows: int
    waiting_rows: int
    blocks_sent: int
    spooled_bytes: int
    reconnects: int
    behind: bool
    submit_seconds: float


class SourceRegulator:
    """Gathers rows into blocks and brings each to the staging log exactly once, in order.

    A block closes at `block_rows`, or `block_ms` after its first row, or at once while nothing is in flight.
    A pause after each block keeps the interpreter's lock with the application: 20 ms before a small one, 5 ms
    before a full one, which grows up to ten times `block_rows` meanwhile.
    While staging is away blocks go to a spool of at most `spool_max_bytes`. Beyond that, rows are not kept
    anywhere: the regulator is *behind*, and when there is room again it reads them from the source by
    position. It does the same at its start, for rows that were committed but never handed over.
    """

    def __init__(
        self,
        source: str,
        schema: pa.Schema,
        address: str | tuple[str, int],
        *,
        spool_dir: Path | str,
        block_rows: int = 100,
        block_ms: float = 50.0,
        spool_max_bytes: int = 256 * 2**20,
        window_blocks: int = 8,
        waiting_max_rows: int = 100_000,
        on_bad_row: OnBadRow | None = None,
    ) -> None:
        self.source, self.schema = source, check_plain_schema(schema)
        self._sender = Sender(
            source,
            schema,
            parse_address(address),
            Spool(Path(spool_dir), source, schema, max_bytes=spool_max_bytes),
            block_rows=block_rows,
            block_ms=block_ms,
            window_blocks=window_blocks,
            waiting_max_rows=waiting_max_rows,
            on_bad_row=on_bad_row,
        )
        self._lock, self._work, self._waiting = self._sender.lock, self._sender.work, self._sender.waiting
        self._rows_submitted = self._submit_ns = 0
        self._pid = os.getpid()
        self._is_closed = False

    def start(self, read_after: ReadAfter, position_column: str) -> None:
        """Begin to send.

        Args:
            read_after: Gives committed rows above a position (None: from the first) in order, at most so many.
                Called by the regulator's thread. A retryable `SourceError` means "ask again soon".
            position_column: Column of the schema that carries the position: an integer that grows with each
                committed row.
        """
        if self._sender.is_started:
            raise InternalError(f"the regulator of {self.source} runs already", code="already_started")
        atexit.register(self.close)
        self._sender.start(read_after, self.schema.get_field_index(position_column))

    def submit(self, rows: Sequence[Row], *, late: bool = False) -> None:
        """Hand over rows right after their commit, in order of position; costs about a microsecond.

        `late` marks rows at or below a position handed over before: they are sent too, but a read by
        position would not find them.
        """
        begin_ns = time.perf_counter_ns()
        with self._lock:
            self._rows_submitted += len(rows)
            if self._waiting.add(rows, late=late, now_ns=begin_ns):
                self._work.notify()
        self._submit_ns += time.perf_counter_ns() - begin_ns

    def reread(self) -> None:
        """Read the source again from the last block on, when a hook is not certain what was committed."""
        with self._lock:
            self._waiting.fall_behind()
            self._work.notify()

    @property
    def resume_position(self) -> int | None:
        """Position behind which the source would be read now; None before its first row."""
        return self._sender.position

    def flush(self, timeout_s: float) -> bool:
        """Whether all that was submitted is in the staging log; waits so long for it. Raises what stopped the sender."""
        with self._lock:
            self._sender.settled.wait_for(
                lambda: self._sender.is_idle() or self._sender.failure is not None, timeout_s
            )
            if self._sender.failure is not None:
                raise self._sender.failure
            return self._sender.is_idle()

    def close(self, timeout_s: float = _EXIT_FLUSH_SECONDS) -> None:
        """Flush for a moment and stop; what is not acknowledged then is sent by the next regulator of this source."""
        if self._is_closed or os.getpid() != self._pid:  # a forked child has no sender
            return
        self._is_closed = True
        atexit.unregister(self.close)
        if self._sender.is_started and self._sender.failure is None:
            with self._lock:
                self._sender.settled.wait_for(
                    lambda: self._sender.is_idle() or self._sender.failure is not None, timeout_s
                )
        self._sender.stop()

    def stats(self) -> RegulatorStats:
        sender = self._sender
        with self._lock:
            return RegulatorStats(
                rows_submitted=self._rows_submitted,
                rows_acked=sender.rows_acked,
                rows_reread=sender.rows_reread,
                unfit_rows=sender.unfit_rows,
                waiting_rows=self._waiting.rows,
                blocks_sent=sender.blocks_sent,
                spooled_bytes=sender.spooled_bytes,
                reconnects=max(sender.reconnects - 1, 0),
                behind=self._waiting.behind,
                submit_seconds=self._submit_ns / 1e9,
            )


__all__ = ["RegulatorStats", "SourceRegulator"]
