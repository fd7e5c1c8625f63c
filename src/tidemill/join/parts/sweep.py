"""What the joins of the mesh family share: a cyclic scan that meets a window of waiting rows."""

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidemill.core.errors import BudgetError, StoreError
from tidemill.core.freed import Freed
from tidemill.core.memory import MemoryBudget
from tidemill.core.units import format_bytes
from tidemill.join.conditions import WORK_BYTES_PER_WAITING_ROW, Condition
from tidemill.join.mesh_sizes import OUTPUT_WORK_BYTES_PER_ROW, MeshSizes
from tidemill.join.output import OutputPlan
from tidemill.join.parts.arrivals import Arrivals
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.page_run import Run
from tidemill.join.parts.snapshots import pack, unpack
from tidemill.join.parts.tally import StepTally
from tidemill.join.parts.window import FROM_THE_HEAD, Window
from tidemill.join.protocol import SemiStreamJoin, StepReport
from tidemill.master.batches import one_batch
from tidemill.master.protocol import Master


class SweepJoin(SemiStreamJoin):
    """Rows wait for exactly one cycle over the master pages, begun wherever the scan stood when they came.

    A step takes new rows into the window, reads a run of pages, and puts out the pairs. A run ends
    where the oldest packet has met every page: so expiry is checked at each page at which it can
    happen. Pairs leave when found; what depends on the whole cycle (unmatched rows of left and
    anti, semi) leaves when the row does. Pairs come in blocks that fit the output reservation; a
    run with more of them takes several steps. When nothing waits nothing is read, and the scan goes
    on later from where it stood.
    """

    _reserved: ClassVar[tuple[str, ...]] = ("pending", "queue", "arrivals", "disk_buffer", "index", "output")

    takes_conditions: ClassVar[bool] = True

    def __init__(
        self,
        master: Master,
        plan: OutputPlan,
        budget: MemoryBudget,
        *,
        sizes: MeshSizes | None = None,
        condition: Condition | None = None,
    ) -> None:
        self.plan = plan
        self._condition = condition
        self.sizes = sizes or self._sizes_beside_condition(master, budget.left_bytes)
        self.budget = budget
        self._master = master
        # Held by arrivals
        self._arrivals = Arrivals(self.sizes.arrivals_bytes, plan.stream_row_bytes)
        self._never_match: list[pa.RecordBatch] = []
        self._rows_in = 0
        # Held by pending and queue
        self._window = self._empty_window()
        # Held by the disk buffer
        self._run: Run | None = None
        self._pages_joined = 0
        self._freed = Freed(self.sizes.total_bytes // 2)
        for name in self._reserved:
            budget.reserve(name, getattr(self.sizes, f"{name}_bytes"))
        budget.reserve("condition", self._condition_bytes(self.sizes))

    @classmethod
    def sizes_for(cls, master: Master, plan: OutputPlan, total_bytes: int) -> MeshSizes:
        """The split of `total_bytes` for this master data and stream."""
        return MeshSizes.from_budget(
            total_bytes,
            plan.stream_row_bytes,
            master.row_bytes,
            master.index_bytes,
            master_pages=master.pages,
            longest_page_bytes=master.page_columns_bytes,
        )

    def _sizes_beside_condition(self, master: Master, total_bytes: int) -> MeshSizes:
        """The split of what a condition leaves: it may need as much for a waiting row as the window does."""
        if self._condition is None:
            return self.sizes_for(master, self.plan, total_bytes)
        try:
            return self.sizes_for(master, self.plan, total_bytes * 9 // 20)
        except BudgetError as refusal:
            least = refusal.least_bytes * 20 // 9 + 1
            raise BudgetError(
                f"{format_bytes(total_bytes)} are too little for a {self.name} join with a condition",
                code="budget_too_small",
                next_move=f"give at least {least:,} bytes",
                total_bytes=total_bytes,
                least_bytes=least,
            ) from refusal

    def _condition_bytes(self, sizes: MeshSizes) -> int:
        return sizes.window_rows * WORK_BYTES_PER_WAITING_ROW if self._condition else 0

    @abstractmethod
    def _packet_rows(self) -> int:
        """Rows that may join the window before the next run."""

    @abstractmethod
    def _run_pages(self) -> int:
        """Pages that the next run reads at most."""

    def room(self, row_bytes: int | None = None) -> int:
        return 0 if self._never_match else self._arrivals.room(row_bytes)

    def offer(self, batch: pa.RecordBatch) -> None:
        self.plan.refuse_other_schema(batch)
        if batch.num_rows == 0:
            return
        self._refuse_beyond_room(batch, self.room(-(-batch.nbytes // batch.num_rows)))
        can_match = self._can_match(batch)
        if not can_match.all():
            self._never_match.append(batch.filter(pa.array(~can_match)))
            batch = batch.filter(pa.array(can_match))
        if batch.num_rows:
            self._arrivals.add(batch)
        self._rows_in += len(can_match)

    @property
    def pending_rows(self) -> int:
        return self._arrivals.rows + self._window.rows + sum(rows.num_rows for rows in self._never_match)

    def step(self) -> StepReport:
        tally = StepTally(rows_in=self._rows_in)
        self._rows_in = 0
        if self._run is None and self._window.expired_until(self._pages_joined) == self._window.oldest:
            self._work(tally)
        if self._run is not None:
            self._join_run(self._run, tally)
        if self._run is None and not tally.outputs:
            self._settle(tally)
        held_bytes = self._held_bytes(tally)
        self._freed.took(tally.counts["bytes_read"] + held_bytes["output"])
        return tally.report(held_bytes)

    def _can_match(self, batch: pa.RecordBatch) -> Bools:
        """Which rows may find a match at all: those with a key, when there are pages."""
        if self._master.pages == 0:
            return np.zeros(batch.num_rows, dtype=np.bool_)
        if self._condition is not None:
            return np.ones(batch.num_rows, dtype=np.bool_)
        return stream_keys(batch, self.plan.stream_key)[1]

    def _work(self, tally: StepTally) -> None:
        with tally.timed("wait"):
            waiting_rows = self._window.rows
            self._admit(self._packet_rows())
            tally.counts["waited_rows"] += self._window.rows - waiting_rows
        if self._window.rows:
            first_page = self._pages_joined % self._master.pages
            # Whoever leaves first must not meet a page twice.
            until_leaving = (self._window.first_leaves_at() or 0) - self._pages_joined
            pages = min(self._run_pages(), self._master.pages - first_page, until_leaving)
            self._run = self._read(first_page, pages, tally)

    def _admit(self, most_rows: int) -> None:
        """Let the oldest arrivals join the window as one packet."""
        rows = self._take_fitting(most_rows)
        if rows.num_rows:
            self._let_wait(rows, self._pages_joined + self._master.pages)

    def _take_fitting(self, most_rows: int) -> pa.RecordBatch:
        """The oldest arrivals for which the window has room, as a batch of their own."""
        taken: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        while self._arrivals.rows and rows < most_rows:
            fitting = self._arrivals.peek(most_rows - rows)
            while fitting.num_rows and not self._window.fits(
                rows + fitting.num_rows, size_bytes + fitting.nbytes
            ):
                fitting = fitting.slice(0, fitting.num_rows // 2)
            if fitting.num_rows == 0:
                break
            # A copy: a cut would keep the whole batch that it is cut from.
            taken.append(self._arrivals.take(fitting.num_rows).take(np.arange(fitting.num_rows)))
            self._arrivals.let_go()
            rows += fitting.num_rows
            size_bytes += fitting.nbytes
        return one_batch(taken, self.plan.stream_schema)

    def _let_wait(self, rows: pa.RecordBatch, leaves_at: int) -> None:
        if self._condition is not None:
            self._window.add(rows, np.zeros(rows.num_rows, dtype=np.int64), leaves_at)
        else:
            self._window.add(rows, stream_keys(rows, self.plan.stream_key)[0], leaves_at)

    def _read(self, first_page: int, pages: int, tally: StepTally) -> Run:
        with tally.timed("read"):
            pages_before, bytes_before = self._master.pages_read, self._master.bytes_read
            rows = self._master.read_batch(np.arange(first_page, first_page + pages))
            tally.counts["pages_read"] += self._master.pages_read - pages_before
            tally.counts["bytes_read"] += self._master.bytes_read - bytes_before
            keys = rows.column(self._master.key).to_numpy()
        run = Run(first_page, pages, rows, np.ascontiguousarray(keys))
        if self._condition is not None:
            run.candidates = self._condition.candidates(self._window, rows)
        return run

    def _join_run(self, run: Run, tally: StepTally) -> None:
        """Put out the next block of pairs; the run is over when there is none left."""
        multiplies = self.plan.how in ("inner", "left")
        output_row_bytes = self.plan.stream_row_bytes + run.rows.nbytes // max(1, run.rows.num_rows)
        most_pairs = max(1, self.sizes.output_bytes // (output_row_bytes + OUTPUT_WORK_BYTES_PER_ROW))
        while not run.is_over and not tally.outputs:
            if len(run.numbers) == 0:
                with tally.timed("probe"):
                    numbers, master_rows = self._pairs(run, most_pairs)
                    self._window.mark(numbers)
                if multiplies:
                    run.numbers, run.master_rows = numbers, master_rows
            if len(run.numbers):
                with tally.timed("assemble"):
                    self._put_out_pairs(run, tally)
        if run.is_over:
            self._pages_joined += run.pages
            self._run = None

    def _pairs(self, run: Run, most_pairs: int) -> tuple[Int64s, Int64s]:
        """The next pairs of waiting row and master row that fulfil the join condition, chunk by chunk."""
        if self._condition is not None:
            return run.pairs_by(self._condition, self._window, most_pairs)
        return run.pairs_of_equal_keys(self.plan.stream_key, self._window, most_pairs)

    def _put_out_pairs(self, run: Run, tally: StepTally) -> None:
        rows = len(run.numbers)
        while True:
            stream_rows = self._window.gather(run.numbers[:rows])
            master_rows = run.rows.select(list(self.plan.chosen_columns)).take(run.master_rows[:rows])
            output = self.plan.assemble(stream_rows, master_rows, None)
            if rows == 1 or output.nbytes <= self.sizes.output_bytes:
                break
            rows //= 2  # these rows are wider than the average
        run.numbers, run.master_rows = run.numbers[rows:], run.master_rows[rows:]
        tally.outputs.append(output)

    def _settle(self, tally: StepTally) -> None:
        """Let rows go that can never match, then those whose cycle is over, up to one output batch."""
        while self._never_match and not tally.outputs:
            rows = self._never_match.pop(0)
            gone = self._put_out_alone(rows, np.zeros(rows.num_rows, np.bool_), tally)
            if gone < rows.num_rows:
                self._never_match.insert(0, rows.slice(gone))
        oldest, until = self._window.oldest, self._window.expired_until(self._pages_joined)
        most_rows = max(1, self.sizes.output_bytes // self.plan.stream_row_bytes)
        while oldest < until and not tally.outputs:
            numbers = np.arange(oldest, min(until, oldest + most_rows))
            matched = self._window.matched(oldest, oldest + len(numbers))
            rows = self._window.gather(numbers if self._leave_at_end(matched).any() else numbers[:0])
            oldest += self._put_out_alone(rows, matched, tally)
            self._window.let_go(oldest)

    def _leave_at_end(self, matched: Bools) -> Bools:
        """Which rows give their output at the end of their cycle."""
        if self.plan.how == "inner":
            return np.zeros(len(matched), dtype=np.bool_)
        return matched if self.plan.how == "semi" else ~matched

    def _put_out_alone(self, rows: pa.RecordBatch, matched: Bools, tally: StepTally) -> int:
        """Number of rows whose fate was settled: all, or the first ones whose output fits."""
        settled = len(matched)
        while True:
            leaves = self._leave_at_end(matched[:settled])
            if not leaves.any():
                break
            stream_rows = rows.slice(0, settled).filter(pa.array(leaves))
            nothing = [
                pa.nulls(stream_rows.num_rows, self._master.schema.field(c).type)
                for c in self.plan.chosen_columns
            ]
            master_rows = pa.RecordBatch.from_arrays(nothing, list(self.plan.chosen_columns))
            output = self.plan.assemble(stream_rows, master_rows, np.zeros(stream_rows.num_rows, np.bool_))
            if settled == 1 or output.nbytes <= self.sizes.output_bytes:
                tally.outputs.append(output)
                break
            settled //= 2
        matched = matched[:settled]
        # Matched rows of inner and left gave their output pair by pair.
        has_output = {"inner": matched, "semi": matched, "anti": ~matched}.get(self.plan.how, matched | True)
        tally.counts["emitted_rows"] += int(has_output.sum())
        tally.counts["dropped_rows"] += int((~has_output).sum())
        tally.counts["disk_matches"] += int(matched.sum())
        tally.counts["unmatched"] += int((~matched).sum())
        return settled

    def _held_bytes(self, tally: StepTally) -> dict[str, int]:
        return {
            "pending": self._window.bytes_held,
            "queue": self._window.queue_bytes_held,
            "arrivals": self._arrivals.bytes_held + sum(rows.nbytes for rows in self._never_match),
            "disk_buffer": self._run.rows.nbytes if self._run else 0,
            "index": self._master.index_bytes,
            "output": sum(batch.nbytes for batch in tally.outputs),
            "condition": self._window.rows * WORK_BYTES_PER_WAITING_ROW if self._condition else 0,
        }

    def _empty_window(self) -> Window:
        return Window(self.sizes.window_rows, self.sizes.rows_bytes, self.plan.stream_schema)

    def _setting(self) -> str:
        on = self._condition or self.plan.stream_key
        return f"{self._master.identity} {self.plan.how} {on} {self.plan.output_schema}"

    def snapshot(self) -> bytes:
        """Waiting rows with their marks and packets, the place of the scan, and pairs on their way out."""
        waiting, matched, packets = self._window.contents()
        facts: dict[str, Any] = {
            "join": self.name,
            "setting": self._setting(),
            "rows_in": self._rows_in,
            "pages_joined": self._pages_joined,
            "packets": packets,
            "per_step": [self.sizes.stream_rows_per_step, self.sizes.master_pages_per_step],
        }
        schema = self.plan.stream_schema
        parts = {
            "arrivals": one_batch(self._arrivals.batches(), schema),
            "never_match": one_batch(self._never_match, schema),
            "waiting": waiting,
            "matched": pa.RecordBatch.from_arrays([pa.array(matched)], ["matched"]),
        }
        if (run := self._run) is not None:
            oldest = self._window.oldest
            row, number = run.cursor.tolist()
            in_chain = number - oldest if number >= oldest else FROM_THE_HEAD
            facts["run"] = [run.first_page, run.pages, row, in_chain]
            pairs = [pa.array(run.numbers - oldest), pa.array(run.master_rows)]
            parts["pairs"] = pa.RecordBatch.from_arrays(pairs, ["number", "master_row"])
        more_facts, more_parts = self._more_parts()
        return pack(facts | more_facts, parts | more_parts)

    def _more_parts(self) -> tuple[dict[str, Any], dict[str, pa.RecordBatch]]:
        """What a subclass adds to a snapshot."""
        return {}, {}

    def restore(self, snapshot: bytes) -> None:
        facts, parts = self._unpack(snapshot)
        self._arrivals = Arrivals(self.sizes.arrivals_bytes, self.plan.stream_row_bytes)
        if parts["arrivals"].num_rows:
            self._arrivals.add(parts["arrivals"])
        self._never_match = [parts["never_match"]] if parts["never_match"].num_rows else []
        self._rows_in, self._pages_joined = facts["rows_in"], facts["pages_joined"]
        self._window, self._run = self._empty_window(), None
        at = 0
        for rows, leaves_at in facts["packets"]:
            self._let_wait(parts["waiting"].slice(at, rows).take(np.arange(rows)), leaves_at)
            at += rows
        self._window.mark(np.flatnonzero(parts["matched"].column(0).to_numpy(zero_copy_only=False)))
        if "run" in facts:
            first_page, pages, *cursor = facts["run"]
            self._run = self._read(first_page, pages, StepTally())
            self._run.cursor[:] = cursor
            numbers, master_rows = (column.to_numpy() for column in parts["pairs"].columns)
            in_order = self._window.by_chunk(numbers)
            self._run.numbers, self._run.master_rows = numbers[in_order], master_rows[in_order]

    def _unpack(self, snapshot: bytes) -> tuple[dict[str, Any], dict[str, pa.RecordBatch]]:
        """Facts and batches of a snapshot of such a join."""
        facts, parts = unpack(snapshot)
        if facts["join"] != self.name or facts["setting"] != self._setting():
            raise StoreError(
                f"the snapshot is of a {facts['join']} join on {facts['setting']}, this one is on {self._setting()}",
                code="snapshot_of_other_join",
                next_move="restore into a join with the same master version, columns and kind",
            )
        return facts, parts


__all__ = ["SweepJoin"]
