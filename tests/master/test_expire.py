"""Old versions go by policy; what is current, young, claimed or referred to stays."""

import json
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.errors import SpecError, StoreError
from tidemill.master import MasterData
from tidemill.master import store as store_module
from tidemill.master.layout import versions_on_disk
from tidemill.spark.version_pin import pin_version

NOW = timedelta(0)
ROWS = 3000


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MasterData:
    """Five versions: each but the first refers to pages of those before it."""
    monkeypatch.setattr(store_module, "is_worth_it", lambda _: False)
    table = pa.table({"id": np.arange(ROWS), "n": np.zeros(ROWS, dtype=np.int64), "pad": ["x" * 40] * ROWS})
    master = MasterData.build(table, key="id", path=tmp_path, page_bytes=4096)
    for version in range(2, 6):
        keys = np.arange(version * 100, version * 100 + 10)
        changes = {"id": keys, "n": [version] * 10, "pad": ["y"] * 10, "_op": ["u"] * 10}
        master = master.apply(pa.table(changes))
    return master


def sums(master: MasterData) -> int:
    return int(master.read_batch(range(master.pages)).column("n").to_numpy().sum())


def test_the_newest_stay_and_pages_that_they_need(store: MasterData):
    assert versions_on_disk(store.path) == [1, 2, 3, 4, 5]
    old = MasterData.open(store.path, 2)
    done = store.expire(keep_last=2, older_than=NOW)
    assert (done.versions, done.claimed) == ([1, 2, 3], [])
    assert done.freed_bytes > 0
    assert versions_on_disk(store.path) == [4, 5]
    assert sums(MasterData.open(store.path)) == 10 * (2 + 3 + 4 + 5)
    assert sums(MasterData.open(store.path, 4)) == 10 * (2 + 3 + 4)
    assert sums(old) == 20, "an open handle keeps what it has"
    with pytest.raises(StoreError, match=r"version 2 .* was expired") as refusal:
        MasterData.open(store.path, 2)
    assert refusal.value.code == "no_such_version"


def test_after_a_compaction_everything_old_can_go(store: MasterData):
    compacted = store.compact()
    done = compacted.expire(keep_last=1, older_than=NOW)
    assert done.versions == [1, 2, 3, 4, 5]
    assert [entry.name for entry in (store.path / "versions").iterdir()] == ["000006"]
    assert sums(MasterData.open(store.path)) == 140
    assert compacted.apply(pa.table({"id": [0], "_op": ["d"]})).version == 7


def test_a_version_is_young_until_it_was_not_current_for_long(store: MasterData):
    assert store.expire(keep_last=1).versions == []
    assert store.expire(keep_last=1, older_than=timedelta(seconds=-60)).versions == [1, 2, 3, 4]


def test_a_claimed_version_stays_until_its_claim_goes(store: MasterData):
    pin_version(store.path / "claims", "query", 7, 3)
    done = store.expire(keep_last=1, older_than=NOW)
    assert (done.versions, done.claimed) == ([1, 2, 4], [3])
    assert sums(MasterData.open(store.path, 3)) == 50
    (store.path / "claims" / "query.7").unlink()
    assert store.expire(keep_last=1, older_than=NOW).versions == [3]


def test_a_damaged_claim_lets_nothing_go(store: MasterData):
    claims = store.path / "claims"
    claims.mkdir()
    (claims / ".query.8.123.tmp").write_text("")
    (claims / "query.7").write_text(json.dumps({"format": 1}))
    with pytest.raises(StoreError, match=r"query\.7") as refusal:
        store.expire(keep_last=1, older_than=NOW)
    assert refusal.value.code == "claim_damaged"
    assert versions_on_disk(store.path) == [1, 2, 3, 4, 5]


def test_the_current_version_stays_even_when_a_later_one_was_never_switched_to(store: MasterData):
    current = (store.path / "CURRENT").read_bytes()
    store.apply(pa.table({"id": [0], "_op": ["d"]}))
    (store.path / "CURRENT").write_bytes(current)  # as if the power had gone before the switch
    assert store.expire(keep_last=1, older_than=NOW).versions == [1, 2, 3, 4]
    assert sums(MasterData.open(store.path)) == 140


def test_an_expire_that_was_killed_is_completed_by_the_next(store: MasterData):
    script = f"""
        import os, signal
        from datetime import timedelta
        from tidemill.master import MasterData, expire
        expire._clear = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        MasterData.open({str(store.path)!r}).expire(keep_last=1, older_than=timedelta(0))
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False).returncode == -9
    assert versions_on_disk(store.path) == [5]
    assert (store.path / "versions/000002/index.arrow").exists()
    assert store.expire(keep_last=1, older_than=NOW).freed_bytes > 0
    left = sorted(str(file.relative_to(store.path)) for file in (store.path / "versions").rglob("*.*"))
    assert left == [
        *(f"versions/00000{n}/pages.bin" for n in (1, 2, 3, 4)),
        *(f"versions/000005/{name}" for name in ("changed.bin", "index.arrow", "manifest.json", "pages.bin")),
    ]
    assert sums(MasterData.open(store.path)) == 140


def test_keeping_none_is_refused(store: MasterData):
    with pytest.raises(SpecError, match="1 or more"):
        store.expire(keep_last=0)


def test_a_reader_that_comes_between_switch_and_expire_finds_the_new_version(
    store: MasterData, monkeypatch: pytest.MonkeyPatch
):
    """It has read CURRENT, then the version goes before its files are open."""
    real = store_module.current_version
    calls: list[int] = []

    def slow(path: Path) -> int:
        version = real(path)
        calls.append(version)
        if len(calls) == 1:
            monkeypatch.setattr(store_module, "current_version", real)
            store.compact().expire(keep_last=1, older_than=NOW)
        return version

    monkeypatch.setattr(store_module, "current_version", slow)
    assert MasterData.open(store.path).version == 6
