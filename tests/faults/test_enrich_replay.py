"""A query killed with -9 while its master data changes ten times a second: re-run batches give the same rows.

Versions expire beside it, Python workers are killed too. 0 lost, 0 doubled, and each row has met the version that its
batch has claimed, not the one that was current when it was run again.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.master import MasterData
from tidemill.master.layout import versions_on_disk
from tidemill.testing.zipf import Zipf

from . import enrich_query
from .enrich_query import AFTER_OUTPUT, KEYS, MEMORY_BYTES, values_after

pytestmark = pytest.mark.timeout(350)  # four starts of Spark: 141 s on two cores with a load of 8
PROGRAM = Path(enrich_query.__file__)
FILES, ROWS_OF_A_FILE = 36, 400
NO_VALUE = -1


class Trial:
    """A query that is started again after each kill, in a folder that keeps what every run wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fail_at = folder / "fail"
        for name in ("in", "out", "fail"):
            (folder / name).mkdir(parents=True)
        keys = Zipf(KEYS + 100, exponent=1.0, seed=8, spread=True).draw(FILES * ROWS_OF_A_FILE)
        self.stream = pa.table({"id": np.arange(len(keys)), "key": keys})
        for number in range(FILES):
            rows = self.stream.slice(number * ROWS_OF_A_FILE, ROWS_OF_A_FILE)
            file = folder / "in" / f"{number:03}.parquet"
            pq.write_table(rows, file)
            os.utime(file, (number, number))  # Spark takes the oldest first
        master = pa.table({"key": np.arange(KEYS), "value": np.zeros(KEYS, dtype=np.int64)})
        MasterData.build(master, key="key", path=folder / "store")
        self._runs = 0
        self._query: psutil.Popen | None = None
        self._tree: set[psutil.Process] = set()
        changing = [sys.executable, str(PROGRAM), "change", str(folder / "store"), str(folder / "log")]
        self._changer = subprocess.Popen(changing)

    def start(self) -> None:
        command = [sys.executable, str(PROGRAM), "query", str(self.folder), str(self._runs)]
        with (self.folder / f"{self._runs}.err").open("w") as errors:
            environment = os.environ | {"TIDEMILL_FAIL_AT": str(self.fail_at)}
            self._query = psutil.Popen(command, env=environment, stderr=errors)
        self._runs += 1

    def wait(self, met: Callable[[], bool]) -> None:
        """Until it is so; a query that ended of itself before is a failure."""
        assert self._query is not None
        while not met():
            assert self._query.poll() in (None, 0), (self.folder / f"{self._runs - 1}.err").read_text()[
                -3000:
            ]
            assert self._changer.poll() is None, "the master data no longer changes"
            with suppress(psutil.Error):
                self._tree |= {self._query, *self._query.children(recursive=True)}
            time.sleep(0.05)

    def wait_for_batches(self, more: int) -> None:
        reached = self.batches() + more
        self.wait(lambda: self.batches() >= reached)

    def batches(self) -> int:
        return len({file.name.split(".")[0] for file in (self.folder / "out").glob("*.parquet")})

    def tell_to_die(self, point: str) -> None:
        (self.fail_at / point).touch()

    def is_told(self, point: str) -> bool:
        return (self.fail_at / point).exists()

    def kill_tree(self) -> None:
        """Driver, Java, the daemon and its workers, all at once."""
        with suppress(psutil.Error):
            self._tree |= {self._query, *self._query.children(recursive=True)} if self._query else set()
        for process in self._tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(self._tree, timeout=20)
        self._tree.clear()

    def end(self) -> None:
        self.kill_tree()
        self._changer.kill()
        self._changer.wait()

    # What the judge asks.

    def outputs(self) -> dict[int, list[pa.Table]]:
        """Rows of each run of each batch, by id."""
        found: dict[int, list[pa.Table]] = {}
        for file in sorted((self.folder / "out").glob("*.parquet")):
            found.setdefault(int(file.name.split(".")[0]), []).append(pq.read_table(file).sort_by("id"))
        return found

    def claims(self) -> dict[int, int]:
        files = (self.folder / "store" / "claims").glob("*.*")
        return {
            int(f.suffix[1:]): json.loads(f.read_text())["version"] for f in files if f.suffix[1:].isdecimal()
        }

    def changes_in(self, version: int) -> int:
        """Number of the last change that a version holds. One that was compacted at once is not in the log itself."""
        log = [(1, 0), *map(json.loads, (self.folder / "log").read_text().splitlines())]
        return next(number for logged, number in log if logged >= version)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """Three kills of the driver, of which two leave a batch with rows that are out but not noted; three of workers."""
    trial = Trial(tmp_path_factory.mktemp("replay") / "trial")
    try:
        for how in (AFTER_OUTPUT, "tree", AFTER_OUTPUT, "end"):
            trial.start()
            trial.wait_for_batches(3)
            trial.tell_to_die("in_task")
            trial.wait_for_batches(4)
            if how == "tree":
                trial.kill_tree()
            elif how == AFTER_OUTPUT:
                trial.tell_to_die(AFTER_OUTPUT)
                with suppress(AssertionError):
                    trial.wait(lambda: not trial.is_told(AFTER_OUTPUT))
                trial.kill_tree()
            else:
                trial.wait(lambda: trial._query is not None and trial._query.poll() == 0)
            assert not trial.is_told("in_task"), "no worker was killed"
        yield trial
    finally:
        trial.end()


def test_no_row_is_lost_or_doubled(trial: Trial) -> None:
    last_runs = pa.concat_tables([runs[-1] for runs in trial.outputs().values()]).sort_by("id")
    assert last_runs.select(["id", "key"]).equals(trial.stream)


def test_a_batch_that_was_run_again_gave_the_same_rows(trial: Trial) -> None:
    outputs = trial.outputs()
    again = {batch: runs for batch, runs in outputs.items() if len(runs) > 1}
    assert len(again) >= 2, "nothing was run again"
    for runs in again.values():
        assert all(run.equals(runs[0]) for run in runs)


def test_the_master_data_had_changed_before_a_batch_was_run_again(trial: Trial) -> None:
    """Else the test above would hold for any version."""
    files = sorted((trial.folder / "out").glob("*.parquet"), key=lambda file: file.stat().st_mtime)
    log = (trial.folder / "log").read_text().splitlines()
    assert len(log) > 50
    claims = trial.claims()
    assert len(set(claims.values())) > FILES / 2, "most batches met a version of their own"
    assert len(versions_on_disk(trial.folder / "store")) < len(log) / 2, "nothing expired"
    seconds = files[-1].stat().st_mtime - files[0].stat().st_mtime
    assert (
        trial.changes_in(max(claims.values())) > seconds
    )  # ten a second are asked for, a busy machine makes fewer


def test_what_the_workers_share_does_not_grow_with_the_versions(trial: Trial) -> None:
    files = [file for file in (trial.folder / "hot").iterdir() if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= MEMORY_BYTES, sorted(file.name for file in files)


def test_every_row_met_the_version_that_its_batch_claimed(trial: Trial) -> None:
    claims, there = trial.claims(), versions_on_disk(trial.folder / "store")
    looked_up = 0
    for batch, runs in trial.outputs().items():
        keys = runs[0]["key"].to_numpy()
        expected = values_after(trial.changes_in(claims[batch]), keys)
        assert (runs[0]["value"].fill_null(NO_VALUE).to_numpy() == expected).all(), batch
        if claims[batch] in there:
            at, rows = MasterData.open(trial.folder / "store", claims[batch]).lookup(keys)
            stored = np.full(len(keys), NO_VALUE)
            stored[at] = rows["value"].to_numpy()
            assert (stored == expected).all(), batch
            looked_up += 1
    assert looked_up >= 5, "claims of the last batches hold their versions"
