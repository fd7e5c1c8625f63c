"""The master version that a batch uses, claimed before it runs and found again when it is re-run."""

import json
import os
from pathlib import Path

from tidemill.core.errors import StoreError

FORMAT = 1
KEPT_BATCHES = 1_000
"""Spark re-runs the last batch only; older claims tell which version a batch of the past has used."""


def pin_version(folder: Path, query_id: str, batch_id: int, version: int) -> int:
    """The version claimed for this batch: ours if we are first, else the one that the first task claimed.

    All tasks of a batch, their retries and a re-run after a crash get the same answer, whatever became current
    meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    claim = folder / f"{query_id}.{batch_id}"
    if not claim.exists():
        aside = folder / f".{query_id}.{batch_id}.{os.getpid()}.tmp"
        aside.write_text(json.dumps({"format": FORMAT, "version": version}))
        try:
            os.link(aside, claim)  # an exclusive create that has its content from the first moment
        except FileExistsError:
            pass
        finally:
            aside.unlink()
        (folder / f"{query_id}.{batch_id - KEPT_BATCHES}").unlink(missing_ok=True)
    try:
        claimed = json.loads(claim.read_text())
        return int(claimed["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"the version claim {claim} is damaged",
            code="claim_damaged",
            next_move='write {"format": 1, "version": N} into it, N being the master version that this batch used',
        ) from error


__all__ = ["pin_version"]
