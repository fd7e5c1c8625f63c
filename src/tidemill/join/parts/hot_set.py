"""Which master rows are hot now, who should be next, and when a switch is worth its cost."""

import numpy as np
import pyarrow as pa

from tidemill.core.errors import SpecError
from tidemill.core.memory import MemoryBudget
from tidemill.join.parts.candidates import CandidatePool
from tidemill.join.parts.frequency import FrequencySketch
from tidemill.join.parts.hot_rows import ENTRY_BYTES, HotRows
from tidemill.join.parts.kernels import Bools, Int64s, UInt32s, count_entries

# A switch copies the hot rows: at 3 M rows/s one copy for two stream rows is noise, and the first
# generations of a new join, which are small, still follow each other quickly.
_STREAM_ROWS_PER_HOT_ROW = 2
_STREAM_ROWS_PER_HOT_ROW_WHEN_FULL = 0.5  # no further candidate can be collected: warm up faster
LEAST_GAIN = 0.005  # share of the stream that must move from disk to memory
AGEING_ROWS_PER_ENTRY = 10
LEAST_AGEING_ROWS = 50_000


class HotSet:
    """The generation in use with its hit counts, the candidates, and the choice between them.

    Frequencies of hot and of other keys age together (halved after every ten stream rows per hot
    key), so they compare. A key is a candidate when it matched more than `threshold_matches` times
    and, once the generation is full, more often than its coldest key. The best keys by matches per
    row make the next generation: the rest is evicted.
    """

    def __init__(
        self,
        schema: pa.Schema,
        identity: str,
        budget: MemoryBudget,
        *,
        generation_bytes: int,
        candidate_bytes: int,
        frequency_bytes: int,
        row_bytes: int,
        threshold_matches: int,
        least_rows_between_switches: int,
    ) -> None:
        self._budget = budget
        self._generation_bytes = generation_bytes
        self._threshold_matches = threshold_matches
        self._least_rows_between = least_rows_between_switches
        self._pool = CandidatePool(candidate_bytes, schema, row_bytes)
        # Reserved in full: candidates come and go within it.
        self._pool_bytes = max(candidate_bytes, self._pool.bytes_held)
        self._sketch = FrequencySketch(frequency_bytes)
        self._ageing_rows = max(
            LEAST_AGEING_ROWS, AGEING_ROWS_PER_ENTRY * generation_bytes // (row_bytes + ENTRY_BYTES)
        )
        self._rows_until_ageing = self._ageing_rows
        self._aged_rows_seen = 0
        self._rows_since_attempt = 0
        self.changes = 0
        """Keys put in or thrown out so far."""
        self._start(HotRows.empty(schema, identity))

    @property
    def bytes_held(self) -> int:
        return self.generation.bytes_held + self._pool.bytes_held

    @property
    def frequency_bytes_held(self) -> int:
        return self._sketch.bytes_held

    def probe(self, keys: Int64s) -> Int64s:
        """Entry of each key in the generation, or -1; hits are counted."""
        found = self.generation.probe(keys)
        count_entries(self._frequencies, found)
        self._see(len(keys))
        return found

    def meet(self, keys: Int64s, master: pa.RecordBatch, start: Int64s, matches: Int64s) -> None:
        """Count keys that matched on disk, equal ones side by side, and keep rows of frequent ones."""
        if self._generation_bytes == 0 or len(keys) == 0:
            return
        estimates = self._sketch.add(keys)
        last_of_key = np.append(keys[1:] != keys[:-1], True)
        # A key may have become hot while rows with it waited: it must not be a candidate once more.
        frequent = last_of_key & (estimates > self._floor) & (self.generation.probe(keys) < 0)
        if frequent.any() and not self._pool.is_full:
            self._pool.add(keys[frequent], master, start[frequent], matches[frequent])

    @property
    def switch_is_due(self) -> bool:
        full = self._pool.is_full
        per_hot_row = _STREAM_ROWS_PER_HOT_ROW_WHEN_FULL if full else _STREAM_ROWS_PER_HOT_ROW
        between = max(self._least_rows_between, int(per_hot_row * self.generation.payload.num_rows))
        return self._rows_since_attempt >= between

    def next_generation(self) -> HotRows | None:
        """A better generation, or None when the candidates would not save enough reads."""
        self._rows_since_attempt = 0
        self._reserve()
        keys, rows_per_key, payload = self._pool.contents()
        frequencies = self._sketch.estimate(keys)
        target_bytes = self._generation_bytes
        while len(keys):
            keep, admit = self._choose(rows_per_key, frequencies, payload, target_bytes)
            gain = int(frequencies[admit].sum()) - int(self._frequencies[~keep].sum())
            if not admit.any() or gain < LEAST_GAIN * self._aged_rows_seen:
                break
            both = self.generation.bytes_held + target_bytes
            if not self._budget.try_reserve("hot_rows", both + 2 * self._pool_bytes):
                break
            built = self._merge(keep, admit, keys, rows_per_key, frequencies, payload)
            if built.bytes_held <= self._generation_bytes:
                return built
            target_bytes = target_bytes * 9 // 10  # the chosen rows are wider than the average
        if self._pool.is_full:
            self._pool.clear()
        self._reserve()
        return None

    def use(self, generation: HotRows) -> None:
        """Switch to this generation; candidates start anew."""
        current = self.generation
        same = generation.identity == current.identity
        if not same or not generation.payload.schema.equals(current.payload.schema):
            raise SpecError(
                f"hot rows of master data {generation.identity} with columns {generation.payload.schema.names} "
                f"were given to a join on {current.identity} with columns {current.payload.schema.names}",
                code="hot_rows_of_other_master",
                next_move="use hot rows built for the same columns of the same version of the master data",
                found=generation.identity,
                expected=current.identity,
            )
        self._pool.clear()
        # Until the old generation is let go, both count.
        both = self.generation.bytes_held + generation.bytes_held
        self._budget.reserve("hot_rows", both + self._pool_bytes)
        self._start(generation)

    def _start(self, generation: HotRows) -> None:
        self.generation = generation
        self._frequencies = generation.frequencies.copy()
        self._reserve()
        is_full = generation.entries > 0 and generation.bytes_held > 0.9 * self._generation_bytes
        self._floor = max(self._threshold_matches, int(self._frequencies.min()) if is_full else 0)

    def _see(self, rows: int) -> None:
        self._aged_rows_seen += rows
        self._rows_since_attempt += rows
        self._rows_until_ageing -= rows
        if self._rows_until_ageing <= 0:
            self._rows_until_ageing = self._ageing_rows
            self._aged_rows_seen //= 2
            self._sketch.halve()
            np.right_shift(self._frequencies, 1, out=self._frequencies)
            self._floor = max(self._threshold_matches, self._floor // 2)

    def _reserve(self) -> None:
        self._budget.reserve("hot_rows", self.generation.bytes_held + self._pool_bytes)

    def _choose(
        self, rows_per_key: Int64s, frequencies: UInt32s, payload: pa.RecordBatch, target_bytes: int
    ) -> tuple[Bools, Bools]:
        """Masks of the hot entries to keep and of the candidates to admit."""
        hot = self.generation
        rows = np.concatenate([np.diff(hot.row_start), rows_per_key])
        matches = np.concatenate([self._frequencies, frequencies])
        row_bytes = (hot.payload.nbytes + payload.nbytes) / max(1, hot.payload.num_rows + payload.num_rows)
        best_first = np.argsort(-(matches / rows), kind="stable")
        filled = np.cumsum((rows * row_bytes + ENTRY_BYTES)[best_first])
        chosen = np.zeros(len(rows), dtype=np.bool_)
        chosen[best_first[filled <= target_bytes]] = True
        return chosen[: hot.entries], chosen[hot.entries :]

    def _merge(
        self,
        keep: Bools,
        admit: Bools,
        keys: Int64s,
        rows_per_key: Int64s,
        frequencies: UInt32s,
        payload: pa.RecordBatch,
    ) -> HotRows:
        matches = np.concatenate([self._frequencies[keep], frequencies[admit]]).astype(np.uint32)
        admitted_rows = np.flatnonzero(np.repeat(admit, rows_per_key))
        self.changes += int(admit.sum()) + int((~keep).sum())
        return self.generation.merged(keep, keys[admit], rows_per_key[admit], payload, admitted_rows, matches)


__all__ = ["AGEING_ROWS_PER_ENTRY", "LEAST_AGEING_ROWS", "LEAST_GAIN", "HotSet"]
