"""The master version that a batch uses, claimed before it runs and found again when it is re-run.

```
task   intent written ─▶ version still there? ─yes─▶ intent becomes the claim, unless another task was first
                                └─no─▶ a newer one, again
expire marks what goes ─▶ reads intents and claims ─▶ removes what is in none
```
Either the expire sees the intent, or the task sees the mark: a claim never names a version that is gone.
"""

import errno
import json
import os
import threading
import time
from pathlib import Path

from tidemill.core.errors import StoreError
from tidemill.core.passing import NEXT_MOVE
from tidemill.master.expire import CLAIMS_FOLDER, is_going
from tidemill.master.layout import MANIFEST_FILE, current_version, version_folder, versions_on_disk
from tidemill.spark.refresh import Claim, Refresh

FORMAT = 2  # 2: with the times of the claim; 1: the version alone
KEPT_BATCHES = 1_000
"""Spark re-runs the last batch only; older claims tell which version a batch of the past has used."""
_MOST_TRIES = 100
_FINAL = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP, errno.ENOTDIR)
"""Errors of a folder in which no claim can be made, however often it is tried."""


def claim_version(store: Path, query_id: str, batch_id: int, refresh: Refresh) -> int:
    """The version for this batch: chosen by the policy if we are first, else the one that the first task claimed.

    All tasks of a batch, their retries and a re-run after a crash get the same answer, whatever became current
    meanwhile. The version is there and stays as long as its claim does.
    """
    claim = store / CLAIMS_FOLDER / f"{query_id}.{batch_id}"
    try:
        return _claimed(store, claim, query_id, batch_id, refresh)
    except OSError as error:
        is_final = error.errno in _FINAL
        mend = f"let workers write to {claim.parent} and make hard links there"
        raise StoreError(
            f"the version of batch {batch_id} of query {query_id} could not be claimed in {claim.parent}: {error}",
            code="claim_failed",
            next_move=mend if is_final else NEXT_MOVE,
            retryable=not is_final,
            file=str(claim),
        ) from error


def _claimed(store: Path, claim: Path, query_id: str, batch_id: int, refresh: Refresh) -> int:
    folder = claim.parent
    if not claim.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _claim_first(store, claim, _last_claim(folder, query_id, batch_id), refresh)
        (folder / f"{query_id}.{batch_id - KEPT_BATCHES}").unlink(missing_ok=True)
        return read_claim(claim).version
    version = read_claim(claim).version
    if not (version_folder(store, version) / MANIFEST_FILE).exists():
        there = versions_on_disk(store)
        raise StoreError(
            f"batch {batch_id} of query {query_id} has used version {version} of {store}, which is gone: "
            "another version would give other rows for the same batch",
            code="claimed_version_gone",
            next_move=f"restore the folder of version {version}; or, if other rows are welcome, remove {claim} and run "
            f"the batch with one of {there}",
            version=version,
            versions=there,
        )
    return version


def read_claim(file: Path) -> Claim:
    """What a claim says; one of format 1 is as old as its file."""
    try:
        told = json.loads(file.read_text())
        written_ms = int(file.stat().st_mtime * 1000)
        claimed_ms = int(told.get("claimed_unix_ms", written_ms))
        return Claim(int(told["version"]), claimed_ms, int(told.get("first_claimed_unix_ms", claimed_ms)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"the version claim {file} is damaged",
            code="claim_damaged",
            next_move='write {"format": 1, "version": N} into it, N being the master version that this batch used',
            file=str(file),
        ) from error


def _claim_first(store: Path, claim: Path, last: Claim | None, refresh: Refresh) -> None:
    """Make the claim, unless another task does so meanwhile."""
    intent = claim.with_name(f".{claim.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        current = _write_intent(store, intent, last, refresh)
        for _ in range(_MOST_TRIES):
            if not is_going(store, current):
                break
            # What the policy kept is on its way out, or what was current is no more.
            current = _write_intent(store, intent, None, refresh)
        else:
            raise StoreError(
                f"version {current} of {store} was gone before it could be claimed, {_MOST_TRIES} times",
                code="version_gone",
                next_move="expire versions less eagerly: with a longer older_than, or more of keep_last",
                retryable=True,
                version=current,
            )
        os.link(intent, claim)  # an exclusive create that has its content from the first moment
    except FileExistsError:
        pass  # another task was first
    finally:
        intent.unlink(missing_ok=True)


def _write_intent(store: Path, intent: Path, last: Claim | None, refresh: Refresh) -> int:
    """The version that the intent names from now on."""
    now_ms = time.time_ns() // 1_000_000
    version = refresh.choose(current_version(store), last, now_unix_ms=now_ms)
    first_ms = last.first_claimed_unix_ms if last is not None and last.version == version else now_ms
    times = {"claimed_unix_ms": now_ms, "first_claimed_unix_ms": first_ms}
    intent.write_text(json.dumps({"format": FORMAT, "version": version, **times}))
    return version


def _last_claim(folder: Path, query_id: str, batch_id: int) -> Claim | None:
    """Of the newest batch before this one that has a claim: a batch without rows has none."""
    before = folder / f"{query_id}.{batch_id - 1}"
    if not before.exists():
        numbers = (file.name.rpartition(".")[2] for file in folder.glob(f"{query_id}.*"))
        earlier = [int(number) for number in numbers if number.isdecimal() and int(number) < batch_id]
        if not earlier:
            return None
        before = folder / f"{query_id}.{max(earlier)}"
    return read_claim(before)


__all__ = ["claim_version", "read_claim"]
