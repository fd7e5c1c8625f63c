"""Which codes a version changed, in a small file beside its manifest: what was kept of other codes is still true.

```
magic · format · version · made from · codes · CRC-32C    six int64, then the codes, ascending, each once
```
A build writes no list: it may have changed every code. An `expire` moves the lists of versions that go to one folder, so
that a reader who is some versions behind still learns what happened meanwhile. A list is advice, never needed for right
results: one that is missing, cut or altered means "not known".
"""

from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from tidemill.core.files import write_atomically
from tidemill.master.hashing import Int64s
from tidemill.master.layout import MANIFEST_FILE, version_folder

LIST_FILE = "changed.bin"
LISTS_FOLDER = "changed"
"""Of lists whose versions have expired."""
MOST_CODES = 1_000_000
"""8 MB. Who keeps rows of so many codes does better to begin anew."""
KEPT_LISTS = 1_000
KEPT_BYTES = 16_000_000

_MAGIC = int.from_bytes(b"TMCODES\n", "little")
_FORMAT = 1
_HEADER = 6


@dataclass(frozen=True)
class _List:
    made_from: int
    codes: Int64s


def write_changed(folder: Path, version: int, *, made_from: int, codes: Int64s) -> None:
    """Write the list of a version into its folder; none when it would be too long.

    Args:
        folder: Of the version, before it has its place.
        version: Its number.
        made_from: The version that was current before it.
        codes: Ascending, each once.
    """
    if len(codes) > MOST_CODES:
        return
    head = np.array([_MAGIC, _FORMAT, version, made_from, len(codes)], dtype="<i8")
    body = codes.astype("<i8").tobytes()
    crc = np.array([google_crc32c.value(head.tobytes() + body)], dtype="<i8")
    write_atomically(folder / LIST_FILE, head.tobytes() + crc.tobytes() + body)


def codes_between(path: Path, since: int, version: int) -> Int64s | None:
    """Codes changed after version `since` up to `version`, ascending, each once; None when that is not known."""
    found: list[Int64s] = [np.empty(0, dtype=np.int64)]
    at = version
    # By way of what each was made from: a version whose writer died before the switch is no ancestor of later ones.
    while at > since:
        told = _read(path, at)
        if told is None or sum(map(len, found)) + len(told.codes) > MOST_CODES:
            return None
        found.append(told.codes)
        at = told.made_from
    return np.unique(np.concatenate(found)) if at == since else None


def keep_list(path: Path, version: int) -> None:
    """Move the list of a version that goes to the folder of such lists."""
    kept = path / LISTS_FOLDER
    kept.mkdir(exist_ok=True)
    (version_folder(path, version) / LIST_FILE).rename(kept / f"{version:06d}.bin")


def drop_old_lists(path: Path) -> int:
    """Bytes freed by removing the oldest kept lists beyond the bounds."""
    lists = sorted((path / LISTS_FOLDER).glob("*.bin"), key=lambda file: -int(file.stem))
    sizes = [file.stat().st_size for file in lists]
    bytes_up_to = np.cumsum(sizes)
    kept = min(KEPT_LISTS, int(np.searchsorted(bytes_up_to, KEPT_BYTES, side="right")))
    for file in lists[kept:]:
        file.unlink()
    return sum(sizes[kept:])


def _read(path: Path, version: int) -> _List | None:
    """The list of a version, wherever it is; None when there is none that can be trusted."""
    content = _content(path, version)
    whole = len(content) // 8 * 8
    words = np.frombuffer(content[:whole], dtype="<i8")
    if len(words) < _HEADER or whole < len(content):
        return None
    magic, form, number, made_from, count, crc = (int(word) for word in words[:_HEADER])
    codes = words[_HEADER:]
    is_ours = (magic, form, number, count) == (_MAGIC, _FORMAT, version, len(codes))
    summed = google_crc32c.value(content[: (_HEADER - 1) * 8] + content[_HEADER * 8 :])
    return _List(made_from, codes) if is_ours and made_from < version and crc == summed else None


def _content(path: Path, version: int) -> bytes:
    folder = version_folder(path, version)
    # In this order: an `expire` removes the manifest, then moves the list. One that was kept of an earlier version of
    # the same number says nothing of a version that is there.
    kept = path / LISTS_FOLDER / f"{version:06d}.bin"
    for file in (folder / LIST_FILE, *([] if (folder / MANIFEST_FILE).exists() else [kept])):
        try:
            return file.read_bytes()
        except FileNotFoundError:
            continue
    return b""


__all__ = ["LIST_FILE", "codes_between", "drop_old_lists", "keep_list", "write_changed"]
