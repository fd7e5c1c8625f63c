"""Memory of workers is counted above what they held before the join, whoever of them has ended."""

import os
import subprocess
import sys
from pathlib import Path

from tidemill.spark.memory_sample import MemorySampler, forget_ended, note_baseline

WORKER = """
import sys
from pathlib import Path
import numpy as np
from tidemill.spark.memory_sample import MemorySampler, note_baseline
folder = Path(sys.argv[1])
note_baseline(folder)
sampler = MemorySampler(folder)
before = sampler.sample()
held = np.ones(6_000_000)
assert sampler.sample() >= before + held.nbytes * 0.9
assert sampler.peak_bytes >= held.nbytes * 0.9
(folder / "workers" / "999999999").write_text("1.0 5")
assert sampler.sample() >= held.nbytes * 0.9, "a worker that ended does not disturb"
"""


def test_memory_is_counted_above_what_the_worker_held_before(tmp_path: Path) -> None:
    # In a process of its own: this one may just give back what other tests have left.
    subprocess.run([sys.executable, "-c", WORKER, str(tmp_path)], check=True)


def test_notes_of_workers_that_have_ended_go_when_another_comes(tmp_path: Path) -> None:
    notes = tmp_path / "workers"
    note = [sys.executable, "-c", "import sys; from pathlib import Path; "
            "from tidemill.spark.memory_sample import note_baseline; note_baseline(Path(sys.argv[1]))"]  # fmt: skip
    subprocess.run([*note, str(tmp_path)], check=True)
    (ended,) = notes.iterdir()
    (notes / "1").write_text("1.0 5")  # of a process before this one with its number
    note_baseline(tmp_path)
    note_baseline(tmp_path)
    assert [file.name for file in notes.iterdir()] == [str(os.getpid())]
    assert ended.name != str(os.getpid())


def test_files_of_queries_that_have_ended_count_no_more(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "rows.hot").write_bytes(b"x" * 1_000_000)
    assert MemorySampler(tmp_path).sample() >= 1_000_000
    forget_ended(tmp_path)
    assert MemorySampler(tmp_path).sample() == 0
