"""Old versions go: by age and number, never the current one, never one that a batch has claimed."""

import json
import shutil
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

from tidemill.core.errors import SpecError, StoreError
from tidemill.core.files import sync_folder
from tidemill.master.changed_codes import LIST_FILE, drop_old_lists, keep_list
from tidemill.master.layout import (
    MANIFEST_FILE,
    Manifest,
    current_version,
    folders_on_disk,
    version_folder,
    versions_on_disk,
)
from tidemill.master.new_version import only_writer

CLAIMS_FOLDER = "claims"
"""Where `spark/version_pin.py` says which version a batch uses."""
GOING_FILE = "going"
"""In the folder of a version that is about to be removed."""
_DEAD_INTENT_SECONDS = 3600
"""An intent lives for milliseconds; one that is older was left by a task that died."""


@dataclass(frozen=True)
class Expired:
    """What an `expire` did."""

    versions: list[int]
    freed_bytes: int
    claimed: list[int]
    """Versions that would have gone, had no batch claimed them."""


def expire_versions(path: Path, *, keep_last: int, older_than: timedelta) -> Expired:
    """Remove versions, and pages files to which no version refers any more.

    A version is removed from its manifest on: killed half-way, the next call finds a folder without one and goes on.
    """
    if keep_last < 1:
        raise SpecError(
            f"keep_last is {keep_last}",
            code="keep_last",
            next_move="keep 1 or more: the current one always stays",
        )
    with only_writer(path):
        current = current_version(path)
        versions = versions_on_disk(path)
        manifests = {version: Manifest.read(version_folder(path, version)) for version in versions}
        stays = {current, *versions[-keep_last:], *_too_young(manifests, older_than)}
        claims = claimed_versions(path / CLAIMS_FOLDER)
        _mark(path, versions, {version for version in versions if version not in stays | claims})
        # A batch may have claimed one in the moment before it was marked; from now on none does.
        claims = claimed_versions(path / CLAIMS_FOLDER)
        claimed = sorted(set(versions) & claims - stays)
        gone = [version for version in versions if version not in stays | claims]
        _mark(path, versions, set(gone))
        for version in gone:
            (version_folder(path, version) / MANIFEST_FILE).unlink()
        kept = {file.name for version in versions if version not in gone for file in manifests[version].files}
        freed = sum(_clear(path, folder, kept) for folder in folders_on_disk(path)) + drop_old_lists(path)
        sync_folder(path / "versions")
        return Expired(gone, freed, claimed)


def is_going(path: Path, version: int) -> bool:
    """Whether a version is gone, or on its way out, so that no batch may claim it any more."""
    folder = version_folder(path, version)
    return (folder / GOING_FILE).exists() or not (folder / MANIFEST_FILE).exists()


def claimed_versions(folder: Path) -> set[int]:
    """Versions that batches have claimed, or are about to; a `StoreError` when one cannot be read, as it may be any."""
    # Twice: what becomes a claim while the folder is listed may be missed under both of its names.
    return _listed(folder) | _listed(folder)


def _listed(folder: Path) -> set[int]:
    claimed: set[int] = set()
    for claim in folder.glob("*") if folder.is_dir() else ():
        is_intent = claim.name.startswith(".")
        try:
            if is_intent and time.time() - claim.stat().st_mtime > _DEAD_INTENT_SECONDS:
                claim.unlink()
                continue
            claimed.add(int(json.loads(claim.read_text())["version"]))
        except FileNotFoundError:
            continue  # let go by its batch meanwhile
        except (ValueError, KeyError, TypeError, OSError) as error:
            if is_intent:
                continue  # half-written: its task has yet to look for the mark
            raise StoreError(
                f"the version claim {claim} is damaged",
                code="claim_damaged",
                next_move='write {"format": 1, "version": N} into it, N being the version that this batch used',
                file=str(claim),
            ) from error
    return claimed


def _mark(path: Path, versions: list[int], going: set[int]) -> None:
    """Mark the versions that go, and take the mark from those that stay after all."""
    for version in versions:
        mark = version_folder(path, version) / GOING_FILE
        if version in going:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)


def _too_young(manifests: dict[int, Manifest], older_than: timedelta) -> set[int]:
    """Versions that were current within that time: their age begins with the version after them."""
    limit_ms = (time.time() - older_than.total_seconds()) * 1000
    followed = pairwise(sorted(manifests))
    return {version for version, after in followed if manifests[after].created_unix_ms > limit_ms}


def _clear(path: Path, version: int, kept: set[str]) -> int:
    """Bytes freed by removing what nothing refers to from the folder of a version that has no manifest."""
    folder = version_folder(path, version)
    if (folder / MANIFEST_FILE).exists():
        return 0
    freed = 0
    if (folder / LIST_FILE).exists():
        keep_list(path, version)
    for file in folder.iterdir():
        if str(file.relative_to(path)) not in kept:
            freed += file.stat().st_size
            file.unlink()
    if not any(folder.iterdir()):
        shutil.rmtree(folder)
    return freed


__all__ = ["CLAIMS_FOLDER", "Expired", "claimed_versions", "expire_versions", "is_going"]
