"""Master data of the join benchmark in every form that a contender reads, made once and kept."""

import shutil
import time
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tidemill.core.errors import StoreError
from tidemill.core.units import format_bytes
from tidemill.lab.forms import Share, build_lmdb, build_parquet, build_sqlite, build_store
from tidemill.lab.master_rows import MASTER_VERSION
from tidemill.master import MasterData
from tidemill.master.layout import FORMAT_VERSION

Progress = Callable[[str, float], None]
"""Takes what is being done, and how much of it is done, 0 … 1."""


class _Form(NamedTuple):
    suffix: str
    bytes_per_row: int
    """On disk while it is built, rounded up from builds of a million rows; the store sorts through files."""
    build: Callable[[Path, int, Share], None]


FORMS = {
    "parquet": _Form(".parquet", 50, build_parquet),
    "store": _Form(".store", 280, build_store),
    "sqlite": _Form(".sqlite", 120, build_sqlite),
    "lmdb": _Form(".lmdb", 150, build_lmdb),
}


@dataclass(frozen=True)
class JoinData:
    """One size of master data."""

    folder: Path
    rows: int

    def path(self, form: str) -> Path:
        return self.folder / f"master-v{MASTER_VERSION}-{self.rows}{FORMS[form].suffix}"

    @property
    def store(self) -> Path:
        return self.path("store")

    @property
    def parquet(self) -> Path:
        return self.path("parquet")

    def master_bytes(self) -> int:
        """Bytes of the rows themselves, to which memory shares refer."""
        return MasterData.open(self.store).row_bytes * self.rows

    def missing(self, forms: Collection[str]) -> list[str]:
        """Those of the forms that must be built; a store of another format counts as missing."""
        return [form for form in forms if not self._is_there(form)]

    def build(self, forms: Collection[str], progress: Progress) -> dict[str, float]:
        """Seconds for each form that was missing; each appears whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        missing = self.missing(forms)
        require_space(self.folder, sum(FORMS[form].bytes_per_row for form in missing) * self.rows)
        return {form: self._build(form, progress) for form in missing}

    def _is_there(self, form: str) -> bool:
        if form != "store":
            return self.path(form).exists()
        try:
            with closing(MasterData.open(self.store)) as store:
                return store.manifest.format_version == FORMAT_VERSION
        except StoreError:
            return False

    def _build(self, form: str, progress: Progress) -> float:
        started = time.perf_counter()
        path = self.path(form)
        part = path.with_name(f"{path.name}.part")
        for old in (part, path):
            _remove(old)
        FORMS[form].build(part, self.rows, lambda share: progress(f"building {path.name}", share))
        part.rename(path)
        return time.perf_counter() - started


def require_space(folder: Path, wanted_bytes: int) -> None:
    """Refuse before anything is written where the disk would fill up."""
    free_bytes = shutil.disk_usage(folder).free
    if wanted_bytes > free_bytes:
        raise StoreError(
            f"the benchmark's data takes {format_bytes(wanted_bytes)} on disk, {format_bytes(free_bytes)} are free at {folder}",
            code="disk_full",
            next_move="give --data a folder on a larger disk, fewer --rows, or --algorithms that read fewer forms",
            wanted_bytes=wanted_bytes,
            free_bytes=free_bytes,
        )


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


__all__ = ["FORMS", "JoinData", "Progress", "require_space"]
