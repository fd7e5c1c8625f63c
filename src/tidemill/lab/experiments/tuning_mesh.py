"""tuning-mesh: an adaptive mesh join whose stream turns four times as fast, with and without a tuner."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.core.memory import MemoryBudget
from tidemill.join.adaptive_mesh import AdaptiveMeshJoin
from tidemill.join.catalog import make_join
from tidemill.join.protocol import StepReport
from tidemill.lab.experiment import Curve, Experiment, Figure, Finding, Setting
from tidemill.lab.virtual_rows import as_stored, open_store
from tidemill.master import MasterData
from tidemill.model.online import MeshTuner
from tidemill.model.tune import best_rate
from tidemill.model.work import COSTS_OF_2008, Work
from tidemill.model.workload import Workload

COSTS = COSTS_OF_2008
FASTER = 4
_MEMORY_SHARE = 0.2
_SPARE = 1.5
"""By which the budget would serve more than comes at most."""
_POINTS = 400
_PHASE_SECONDS = 40.0
_SMOOTHING_SECONDS = 2.0
_SETTLED_SECONDS = 1.0
"""Of arrivals: what may stand before the join when it keeps up."""
_STREAM = pa.schema([("key", pa.int64()), ("event", pa.int64())])
_STREAM_ROW_BYTES = 16


@dataclass(kw_only=True)
class Track:
    """What was seen at moments of virtual time."""

    seconds: list[float] = field(default_factory=list)
    backlog_rows: list[float] = field(default_factory=list)
    memory_bytes: list[float] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    offered_rows: int = 0

    @property
    def rows_lost_or_doubled(self) -> int:
        """Every row of the stream has one master row, so each event must have left once."""
        seen = np.bincount(np.concatenate(self.events), minlength=self.offered_rows)
        return int(np.abs(seen - 1).sum())

    def at(self, seconds: float, what: str) -> float:
        return float(np.interp(seconds, self.seconds, getattr(self, what)))

    def caught_up(self, rate: float) -> float:
        """Seconds of the fast stretch after which no more than a second's arrivals stood before the join."""
        behind = [
            now
            for now, rows in zip(self.seconds, self.backlog_rows, strict=True)
            if rows > _SETTLED_SECONDS * FASTER * rate and now < 2 * _PHASE_SECONDS
        ]
        return max(behind, default=_PHASE_SECONDS) - _PHASE_SECONDS

    def curve(self, label: str, what: str) -> Curve:
        every = max(1, len(self.seconds) // _POINTS)
        return Curve(label=label, x=self.seconds[::every], y=getattr(self, what)[::every])


class Simulation:
    """A stream whose rate is a function of time, and a join whose work takes virtual time."""

    def __init__(
        self, master: MasterData, workload: Workload, memory_bytes: int, rate: float, seed: int
    ) -> None:
        join = make_join(
            "adaptive_mesh", master, _STREAM, stream_key="key", budget=MemoryBudget(memory_bytes)
        )
        assert isinstance(join, AdaptiveMeshJoin)
        self.join = join
        self.now = 0.0
        self.track = Track()
        self._master, self._workload, self._rate = master, workload, rate
        self._random = np.random.default_rng(seed)

    def arrived_rows(self) -> int:
        """Slow, then four times as fast, then slow again."""
        fast = min(max(0.0, self.now - _PHASE_SECONDS), _PHASE_SECONDS)
        return int(self._rate * (min(self.now, 3 * _PHASE_SECONDS) + (FASTER - 1) * fast))

    def run(self, tuner: MeshTuner, *, until: float) -> Track:
        """Three stretches, then everything that waits; the tuner sees the stream until that moment."""
        arrived = 0
        while self.now < 3 * _PHASE_SECONDS:
            came, arrived = self.arrived_rows() - arrived, self.arrived_rows()
            if self.now < until:
                tuner.arrived(came, self.now)
                tuner.adjust()
            self._offer(arrived)
            self._step()
            self._note(arrived - self.track.offered_rows)
        while self.track.offered_rows < arrived or self.join.pending_rows:
            self._offer(arrived)
            self._step()
        return self.track

    def _offer(self, arrived: int) -> None:
        first = self.track.offered_rows
        rows = min(arrived - first, self.join.room(_STREAM_ROW_BYTES))
        keys = self._random.integers(0, self._workload.master_keys, rows)
        events = np.arange(first, first + rows)
        self.join.offer(pa.record_batch([pa.array(keys), pa.array(events)], schema=_STREAM))
        self.track.offered_rows += rows

    def _step(self) -> None:
        reads = self._master.reads
        report = self.join.step()
        self.track.events += [batch.column("event").to_numpy() for batch in report.outputs]
        work = self._work(report, self._master.reads - reads)
        waiting_bytes = report.held_bytes["pending"]
        cpu_seconds = sum(COSTS.cpu_seconds(work, waiting_bytes=waiting_bytes).values())
        self.now += max(
            1e-3, cpu_seconds + COSTS.read_seconds(work)
        )  # an idle join looks again after a moment

    def _work(self, report: StepReport, reads: int) -> Work:
        return Work(
            stream_rows=report.rows_in,
            added=report.waited_rows,
            master_rows=report.pages_read * self._master.rows / self._master.pages,
            removed=report.emitted_rows + report.dropped_rows,
            output_rows=report.output_rows,
            reads=reads,
            read_bytes=report.bytes_read,
            steps=report.pages_read > 0,
        )

    def _note(self, backlog_rows: int) -> None:
        self.track.seconds.append(self.now)
        self.track.backlog_rows.append(backlog_rows)
        self.track.memory_bytes.append(self.join.budget.held_bytes)


def run(setting: Setting) -> Finding:
    asked = Workload(
        master_rows=60_000 if setting.quick else 500_000,
        master_row_bytes=120,
        stream_row_bytes=_STREAM_ROW_BYTES,
        zipf_exponent=0,
    )
    master = open_store(asked, setting.folder)
    workload = as_stored(asked, master)
    memory_bytes = int(_MEMORY_SHARE * workload.master_bytes)
    best = best_rate(workload, COSTS, memory_bytes, algorithms=["adaptive_mesh"])
    rate = best.rows_per_s / _SPARE / FASTER
    tracks = []
    for number, follows in enumerate((True, False)):
        setting.progress("with a tuner" if follows else "with sizes for the slow stream", number / 2)
        simulation = Simulation(master, workload, memory_bytes, rate, setting.seed)
        tuner = MeshTuner(simulation.join, workload, COSTS, smoothing_seconds=_SMOOTHING_SECONDS)
        tracks.append(simulation.run(tuner, until=3 * _PHASE_SECONDS if follows else _PHASE_SECONDS))
    master.close()
    return _finding(rate, *tracks)


def _finding(rate: float, followed: Track, fixed: Track) -> Finding:
    slow, fast, slow_again = (
        followed.at(phase * _PHASE_SECONDS - 0.1, "memory_bytes") for phase in (1, 2, 3)
    )
    backlog, without = (track.at(2 * _PHASE_SECONDS, "backlog_rows") for track in (followed, fixed))
    lost = followed.rows_lost_or_doubled + fixed.rows_lost_or_doubled
    wrong = {
        "rows were lost or doubled": lost > 0,
        "the join fell behind": backlog > _SETTLED_SECONDS * FASTER * rate,
        "sizes of the slow stream kept up too": without < _PHASE_SECONDS * rate,
        "memory did not follow": fast < 1.2 * slow or slow_again > 1.1 * slow,
    }
    return Finding(
        holds=not any(wrong.values()),
        measured=(
            f"{followed.offered_rows:,} rows, {rate:,.0f} a second, then {FASTER} times as many, then as before: {lost} lost or "
            f"doubled; memory {slow / 1e6:.2f}, {fast / 1e6:.2f}, {slow_again / 1e6:.2f} MB; at the end of the fast stretch {backlog:,.0f} "
            f"rows stood before the join, without a tuner {without:,.0f}; it had caught up after {followed.caught_up(rate):.1f} s"
        ),
        reason=", ".join(name for name, is_so in wrong.items() if is_so),
        values={
            "lost_or_doubled": lost,
            "backlog_rows": backlog,
            "backlog_rows_without": without,
            "slow_memory_bytes": slow,
            "fast_memory_bytes": fast,
        },
        figures=[
            Figure(
                title="Rows before the join",
                x_label="virtual seconds",
                y_label="rows",
                curves=[followed.curve("tuned", "backlog_rows"), fixed.curve("fixed", "backlog_rows")],
            ),
            Figure(
                title="Memory",
                x_label="virtual seconds",
                y_label="bytes",
                curves=[followed.curve("tuned", "memory_bytes"), fixed.curve("fixed", "memory_bytes")],
            ),
        ],
    )


EXPERIMENTS = [
    Experiment(
        id="tuning-mesh",
        claim="An adaptive mesh join under a tuner follows a stream that turns four times as fast, and back, with memory "
        "that grows and shrinks, and loses no row",
        source="Polyzotis et al., TKDE 2008, §3.3",
        sizes="60,000 master rows of 120 B (quick) or 500,000, budget 20 %, three stretches of 40 s in virtual time, costs of 2008",
        run=run,
    )
]
