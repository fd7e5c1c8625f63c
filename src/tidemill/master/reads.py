"""Pages from disk: neighbours with one read, several reads in flight, nothing believed before its checksum fits."""

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import SpecError, StoreError
from tidemill.core.passing import NEXT_MOVE, may_pass
from tidemill.core.recycled import Recycled
from tidemill.master.board_kernels import BYTES, HANDLE, NUMBER, OFFSET, PLAN_WIDTH
from tidemill.master.hashing import Bools, Int64s
from tidemill.master.index import PageIndex
from tidemill.master.layout import PAGE_ALIGNMENT_BYTES, RUN_BYTES, Manifest
from tidemill.master.many_reads import Contexts
from tidemill.master.page_files import PageFiles
from tidemill.master.page_kernels import BLOCK_WORDS, open_pages
from tidemill.master.read_kernels import NOT_READ, read_pages
from tidemill.master.stretches import Stretches

UInt8s = npt.NDArray[np.uint8]
Pages = Int64s | slice
"""Numbers of pages; as a slice for neighbours, which is found faster."""
WORK_BYTES_PER_ROW = 8 + 8
_MOST_KEPT_BYTES = 6 * 2**20  # three reads of `tide`, each in a large page: more would be kept for nothing
_MANY_READS = 4  # that are worth asking for together
_RUN_BLOCKS = RUN_BYTES // PAGE_ALIGNMENT_BYTES


@dataclass(frozen=True)
class PageRows:
    """Rows of some pages, verified, as they lie on disk; `RowLayout.decode` makes columns of them."""

    buffer: UInt8s
    """Starts at a multiple of eight bytes; cannot be written."""
    codes: Int64s
    at: Int64s
    """Where each row begins in the buffer."""
    page_start: Int64s
    """Number of the first row of each page, and of all rows."""


@dataclass(frozen=True)
class _Job:
    """One read: what is wanted, where it lies, and the memory that it fills."""

    pages: "Pages"
    begin: Int64s
    """Block with which each page begins in the buffer, and the end of the last."""
    offset: npt.NDArray[np.uint32]
    file: npt.NDArray[np.uint16]
    stretches: Int64s
    """First page and end of each run of neighbours on disk."""
    buffer: UInt8s
    page_start: Int64s
    found: Int64s
    """Codes and places of rows."""


class Reading:
    """Rows on their way: read in a thread, or when they are asked for."""

    def __init__(
        self,
        reader: "PageReader",
        pages: "Pages",
        future: "Future[PageRows] | None",
    ) -> None:
        self.reader = reader
        self._pages = pages
        self._future = future

    def result(self) -> PageRows:
        """The rows; waits for them, and raises what reading them raised. To be asked once."""
        started = time.perf_counter()
        rows = self._future.result() if self._future else self.reader.fetch(self._pages)
        self.reader.count(rows, time.perf_counter() - started)
        return rows


class PageReader:
    """Reads pages of one version and counts what that took.

    Pages that are neighbours on disk come with one read. With `reads_in_flight` above 1 that many
    reads are done by threads while the caller works: reading and verifying let go of the interpreter.
    `direct` asks the kernel to keep out its page cache; buffers are then aligned to device blocks, for 4 KiB more each.
    """

    def __init__(
        self, store: Path, manifest: Manifest, index: PageIndex, *, direct: bool, reads_in_flight: int
    ) -> None:
        if reads_in_flight < 1:
            raise SpecError(
                f"reads_in_flight is {reads_in_flight}",
                code="reads_in_flight",
                next_move="give 1 or more",
            )
        self.pages_read = 0
        self.bytes_read = 0
        self.reads = 0
        """Runs of neighbouring pages that were asked for."""
        self.read_seconds = 0.0
        """Seconds that callers waited: reads that overlap with their work cost nothing here."""
        self.direct = direct
        self.reads_in_flight = reads_in_flight
        self._index = index
        self._most_rows_of_a_page = manifest.most_rows_of_a_page
        everything = slice(0, index.pages)
        self._is_in_order = not self._is_apart(everything, self._begins(everything)).any()
        self._files = PageFiles(store, manifest.files, direct=direct)
        self._memory = Recycled(_MOST_KEPT_BYTES, large_pages=True)
        self._contexts = Contexts()
        self._pool = ThreadPoolExecutor(reads_in_flight, "page-reads") if reads_in_flight > 1 else None
        if self._pool is not None:
            # May run inside a garbage collection, in any thread and at any line: it must not wait for a thread.
            weakref.finalize(self, self._pool.shutdown, wait=False)

    def close(self) -> None:
        """Let reads that are under way end, then give threads and files back; idempotent."""
        if self._pool is not None:
            self._pool.shutdown()
        self._contexts.close()
        self._files.close()

    def begin(self, pages: Pages) -> Reading:
        """The pages' rows, on their way into one buffer."""
        if self._pool is None or (not isinstance(pages, slice) and not len(pages)):
            return Reading(self, pages, None)
        # All that needs the interpreter, and all memory, by the caller's thread: a reader that waits for the
        # interpreter stops reading, and Arrow's allocator keeps what it frees for each thread apart.
        return Reading(self, pages, self._pool.submit(self._finish, self._prepare(pages)))

    def stretches(self, pages: Int64s, numbers: Int64s, edges: Int64s) -> Stretches | None:
        """Where stretches of pages lie; None when one of them is not in one piece.

        Args:
            pages: All of them, in order.
            numbers: Of the stretches.
            edges: With which of the pages each begins, and the end.
        """
        if self._is_apart_inside(pages, edges):
            return None
        begin, offset, file = self._begins(pages), self._index.offset[pages], self._index.file[pages]
        first = edges[:-1]
        plan = np.zeros((len(numbers), PLAN_WIDTH), dtype=np.int64)
        plan[:, HANDLE], plan[:, NUMBER] = self._files.handles[file[first]], numbers
        plan[:, OFFSET] = offset[first].astype(np.int64) * PAGE_ALIGNMENT_BYTES
        plan[:, BYTES] = np.diff(begin[edges]) * PAGE_ALIGNMENT_BYTES
        return Stretches(
            plan,
            edges,
            begin * BLOCK_WORDS,
            offset,
            file,
            self._files.salts,
            self._most_rows_of_a_page,
        )

    def submit(self, call: Callable[[], int]) -> Callable[[], int]:
        """Gives the answer of a call that reads: in a thread if the reader has some, else when it is asked."""
        return self._pool.submit(call).result if self._pool is not None else call

    def room(self, size_bytes: int) -> UInt8s:
        """Memory to read into, at a multiple of 4,096; it is used again when nobody refers to it."""
        return self._memory.array(size_bytes)

    def _is_apart_inside(self, pages: Int64s, edges: Int64s) -> bool:
        if self._is_in_order:
            return False
        is_apart = np.append(self._is_apart(pages, self._begins(pages)), True)
        is_apart[edges[1:] - 1] = False
        return bool(is_apart.any())

    def in_runs(self, pages: Int64s) -> Iterator[PageRows]:
        """The pages in the order asked for, in runs of neighbours; at most `reads_in_flight` are read ahead."""
        begin = self._begins(pages)
        neighbours = stretches(np.diff(pages) != 1, begin, _RUN_BLOCKS)
        runs = (slice(int(pages[first]), int(pages[end - 1]) + 1) for first, end in neighbours)
        ahead = deque(self.begin(run) for run in islice(runs, self.reads_in_flight))
        while ahead:
            rows = ahead.popleft().result()
            ahead.extend(self.begin(run) for run in islice(runs, 1))
            yield rows

    def together(self, pages: Int64s) -> PageRows:
        """The pages in one buffer in the order asked for; several reads are in flight if the reader may."""
        started = time.perf_counter()
        rows = self.fetch(pages, in_flight=True)
        self.count(rows, time.perf_counter() - started)
        return rows

    def fetch(self, pages: Pages, *, in_flight: bool = False) -> PageRows:
        """The rows of pages, read and verified by this thread and, with `in_flight`, read by those of the pool."""
        if not in_flight or self._pool is None:
            return self._finish(self._prepare(pages))
        job = self._prepare(pages, _RUN_BLOCKS)
        deque(self._pool.map(lambda stretch: self._fill(job, stretch), job.stretches.tolist()), maxlen=0)
        return self._opened(job)

    def _prepare(self, pages: Pages, most_blocks: int | None = None) -> "_Job":
        """What reading the pages takes; stretches of neighbours no longer than that."""
        begin = self._begins(pages)
        offset, file = self._index.offset[pages], self._index.file[pages]
        parts = self._neighbours(pages, begin)
        self.reads += len(parts)
        if most_blocks is not None:
            is_apart = self._is_apart(pages, begin)
            parts = np.array(list(stretches(is_apart, begin, most_blocks)), dtype=np.int64).reshape(-1, 2)
        found = np.empty((2, (len(begin) - 1) * self._most_rows_of_a_page), dtype=np.int64)
        buffer = self.room(int(begin[-1]) * PAGE_ALIGNMENT_BYTES)
        return _Job(pages, begin, offset, file, parts, buffer, np.empty(len(begin), np.int64), found)

    def _neighbours(self, pages: Pages, begin: Int64s) -> Int64s:
        """First page and end of each run of neighbours on disk."""
        count = len(begin) - 1
        if self._is_in_order and isinstance(pages, slice):  # as is known without a look at the index
            return np.array([[0, count]] * min(1, count), dtype=np.int64).reshape(-1, 2)
        is_first = np.ones(count, dtype=np.bool_)
        is_first[1:] = self._is_apart(pages, begin)
        first = np.flatnonzero(is_first)
        return np.stack([first, np.append(first[1:], count)[: len(first)]], axis=1)

    def _finish(self, job: "_Job") -> PageRows:
        first, end = job.stretches.T
        codes, at = job.found
        # Through the page cache the kernel would do one after the other all the same.
        context = self._contexts.take() if self.direct and len(first) >= _MANY_READS else 0
        bad = read_pages(
            context,
            self._files.handles[job.file[first]],
            job.offset[first].astype(np.int64) * PAGE_ALIGNMENT_BYTES,
            job.begin[first] * PAGE_ALIGNMENT_BYTES,
            (job.begin[end] - job.begin[first]) * PAGE_ALIGNMENT_BYTES,
            job.buffer.view(np.uint64), job.begin * BLOCK_WORDS, job.offset, job.file, self._files.salts,
            job.page_start, codes, at,
        )  # fmt: skip
        self._contexts.give_back(context, len(first))
        if bad == NOT_READ:  # read again by a way that says why
            for stretch in job.stretches.tolist():
                self._fill(job, stretch)
            return self._opened(job)
        return self._verified(job, bad)

    def count(self, rows: PageRows, seconds: float) -> None:
        self.read_seconds += seconds
        self.pages_read += len(rows.page_start) - 1
        self.bytes_read += rows.buffer.nbytes

    def count_stretches(self, stretches: Stretches, seconds: float) -> None:
        """Count what was read of them; the others were read by another process."""
        pages, size_bytes, reads = stretches.told()
        self.read_seconds += seconds
        self.pages_read += pages
        self.bytes_read += size_bytes
        self.reads += reads

    def buffer_bytes(self, pages: Pages) -> int:
        """Memory that reading these pages at once takes at most, with what is held beside their rows."""
        blocks = self._index.blocks[pages]
        slack = PAGE_ALIGNMENT_BYTES if self.direct else 0
        stored = int(blocks.sum(dtype=np.int64)) * PAGE_ALIGNMENT_BYTES
        return stored + slack + len(blocks) * self._most_rows_of_a_page * WORK_BYTES_PER_ROW

    def _begins(self, pages: Pages) -> Int64s:
        """Block with which each page begins in a buffer of them, and the end of the last."""
        blocks = self._index.blocks[pages]
        begin = np.zeros(len(blocks) + 1, dtype=np.int64)
        np.cumsum(blocks, out=begin[1:])
        return begin

    def _is_apart(self, pages: Pages, begin: Int64s) -> Bools:
        """Between which pages there is something else on disk."""
        offset, file = self._index.offset[pages], self._index.file[pages]
        is_apart: Bools = (file[1:] != file[:-1]) | (np.diff(offset.astype(np.int64)) != np.diff(begin)[:-1])
        return is_apart

    def _fill(self, job: "_Job", stretch: Sequence[int]) -> None:
        """Read pages that are neighbours on disk."""
        first, end = stretch
        begin = int(job.begin[first]) * PAGE_ALIGNMENT_BYTES
        room = job.buffer[begin : int(job.begin[end]) * PAGE_ALIGNMENT_BYTES].data
        try:
            offset = int(job.offset[first]) * PAGE_ALIGNMENT_BYTES
            done = self._files.read_into(room, int(job.file[first]), offset)
        except OSError as error:
            raise self._refused(job.pages, first, f"cannot be read: {error}", error) from error
        if done < len(room):
            ends = (job.begin[first + 1 :] - job.begin[first]) * PAGE_ALIGNMENT_BYTES
            cut = int(np.searchsorted(ends, done, side="right"))
            raise self._refused(
                job.pages, first + cut, f"is cut: the file ends {int(ends[cut]) - done} bytes too early"
            )

    def _opened(self, job: "_Job") -> PageRows:
        codes, at = job.found
        bad = open_pages(
            job.buffer.view(np.uint64), job.begin * BLOCK_WORDS, job.offset, job.file, self._files.salts,
            job.page_start, codes, at,
        )  # fmt: skip
        return self._verified(job, bad)

    def _verified(self, job: "_Job", bad: int) -> PageRows:
        if bad >= 0:
            raise self._refused(job.pages, bad, "fails its checksum")
        rows = int(job.page_start[-1])
        job.buffer.flags.writeable = False
        codes, at = job.found
        return PageRows(job.buffer, codes[:rows], at[:rows], job.page_start)

    def _refused(self, pages: Pages, which: int, what: str, error: OSError | None = None) -> StoreError:
        """What is said of a page whose content is wrong, or that could not be read."""
        passes = error is not None and may_pass(error)
        page = pages.start + which if isinstance(pages, slice) else int(pages[which])
        offset = int(self._index.offset[page]) * PAGE_ALIGNMENT_BYTES
        file = str(self._files.paths[int(self._index.file[page])])
        return StoreError(
            f"page {page} of {file} at offset {offset} {what}",
            code="page_corrupt" if error is None else "page_unreadable",
            next_move=NEXT_MOVE if passes else "restore the file from a copy, or build the master data again",
            retryable=passes,
            file=file,
            page=page,
            offset=offset,
        )


def stretches(is_break: Bools, begin: Int64s, most_blocks: int) -> Iterator[tuple[int, int]]:
    """First and end of each stretch of neighbours, none with more blocks than that unless it is one page.

    >>> begin = np.array([0, 4, 8, 12, 16])
    >>> list(stretches(np.array([False, True, False]), begin, most_blocks=4))
    [(0, 1), (1, 2), (2, 3), (3, 4)]
    >>> list(stretches(np.array([False, True, False]), begin, most_blocks=100))
    [(0, 2), (2, 4)]
    """
    edges = [0, *(np.flatnonzero(is_break) + 1).tolist(), len(begin) - 1]
    for edge, until in pairwise(edges):
        at = edge
        while at < until:
            reach = int(begin[at]) + most_blocks
            end = max(at + 1, at + int(np.searchsorted(begin[at : until + 1], reach, side="right")) - 1)
            yield at, end
            at = end


def cyclic(pages: int, from_page: int) -> Int64s:
    """All page numbers once, from one of them on and around.

    >>> cyclic(4, 3).tolist()
    [3, 0, 1, 2]
    """
    return (np.arange(pages, dtype=np.int64) + from_page) % max(1, pages)


__all__ = ["PageReader", "PageRows", "Reading", "cyclic", "stretches"]
