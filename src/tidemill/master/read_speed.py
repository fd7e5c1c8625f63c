"""How fast the disk under a store is, as far as a few reads can tell."""

import time
from pathlib import Path

import numpy as np

from tidemill.core.errors import StoreError
from tidemill.master.store import MasterData

_PROBES = 5
_PAGES = 16  # 256 KiB, as a join reads them


def bytes_per_second(path: Path, version: int) -> float:
    """Median over a few reads past the page cache, each of neighbouring pages; infinite when nothing can be read."""
    try:
        return _measured(MasterData.open(path, version, direct=True))
    except StoreError:  # whoever needs the page says so
        return float("inf")


def _measured(master: MasterData) -> float:
    speeds = [float("inf")] if not master.pages else []
    for first in (
        np.linspace(0, max(0, master.pages - _PAGES), _PROBES if master.pages else 0).astype(int).tolist()
    ):
        pages = min(_PAGES, master.pages - first)
        before, started = master.bytes_read, time.perf_counter()
        master.read_rows(first, pages)
        speeds.append((master.bytes_read - before) / (time.perf_counter() - started))
    master.close()
    return float(np.median(speeds))


__all__ = ["bytes_per_second"]
