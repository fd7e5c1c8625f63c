"""Names, numbers and the manifest of a master store on disk.

```
path/CURRENT                      which version a reader opens; replaced last
path/versions/000001/pages.bin    pages of rows (`page_kernels.py`), each starting at a multiple of 4 KiB
path/versions/000001/index.arrow  one entry a page: first code, file, offset, blocks, whether a code continues
path/versions/000001/keys.bin     only for pages in a given order: each code and its page, sorted by code
path/versions/000001/blocks.arrow only beside keys.bin: first code and CRC-32C of each of its blocks
path/versions/000001/packed.arrow only where strings are packed: dictionaries and frames (`packing.py`)
path/versions/000001/changed.bin  which codes differ from the version before it (`changed_codes.py`); not after a build
path/versions/000001/manifest.json  sealed: format, schema, counts, sizes and checksums of the files
path/changed/000001.bin           the same of versions that have expired, as far back as bounds allow
```
A version may refer to pages files of versions before it.
"""

import base64
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import google_crc32c
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.files import read_sealed, write_sealed

# 7: codes of four bytes, rows without bits; 6: scaled floats, digits in half bytes, dense pages, checksums over lines; 5: framed columns;
# 4: packed columns; 3: row-wise pages, several pages files; 2: keys of every type, given orders
FORMAT_VERSION = 7
READABLE_FORMATS = (3, 4, 5, 6, 7)
PAGE_ALIGNMENT_BYTES = 4096  # direct I/O asks for offsets and lengths in whole device blocks
RUN_BYTES = 256 * 1024  # neighbouring pages are read together up to here: the knee of the measured curve

PAGES_FILE = "pages.bin"
INDEX_FILE = "index.arrow"
KEYS_FILE = "keys.bin"
BLOCKS_FILE = "blocks.arrow"
MANIFEST_FILE = "manifest.json"


PageOrder = Literal["key", "given"]


@dataclass(frozen=True)
class PageFile:
    """A file of pages as it was when it was complete; never changed afterwards."""

    name: str
    """Relative to the folder of the store."""
    bytes: int
    crc: int
    salt: int
    """From which the checksums of its pages start, so that pages of another file are found out."""


@dataclass(frozen=True)
class Manifest:
    """What a version holds, written when everything else of it is on disk."""

    key_columns: list[str]
    key_types: list[str]
    code_kind: str
    hash_seed: int
    page_order: PageOrder
    schema_base64: str
    rows: int
    distinct_keys: int
    most_rows_of_a_key: int
    """At most so many, once changes were applied."""
    last_code: int
    """No code is greater."""
    row_bytes: int
    """Mean size as Arrow columns; an estimate once changes were applied."""
    page_bytes: int
    pages: int
    longest_page_bytes: int
    most_rows_of_a_page: int
    files: list[PageFile]
    index_file_bytes: int
    index_file_crc: int
    keys_file_bytes: int = 0
    blocks_file_bytes: int = 0
    blocks_file_crc: int = 0
    packed: dict[str, str | int] = field(default_factory=dict)
    """The form of the `Packing` of its columns."""
    has_nulls: bool = True
    """Whether its rows have bits that tell NULLs."""
    packed_file_bytes: int = 0
    packed_file_crc: int = 0
    stored_row_bytes: int = 0
    """Mean size as packed rows; 0 where nothing is packed."""
    positions: dict[str, int] = field(default_factory=dict)
    """How far each feed of changes has come (`feeds.py`); a build forgets them."""
    created_unix_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    format_version: int = FORMAT_VERSION

    @property
    def mean_rows_of_a_key(self) -> float:
        return self.rows / max(1, self.distinct_keys)

    @property
    def files_digest(self) -> int:
        """Names the content of all pages files."""
        facts = [(file.name, file.bytes, file.crc, file.salt) for file in self.files]
        return int(google_crc32c.value(repr(facts).encode()))

    @property
    def schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema_base64)))

    def write(self, folder: Path) -> None:
        write_sealed(folder / MANIFEST_FILE, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        record = read_sealed(folder / MANIFEST_FILE)
        refuse_other_format(record, folder / MANIFEST_FILE)
        files = [PageFile(**file) for file in record.pop("files")]
        return cls(**record, files=files)


def schema_as_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def version_folder(path: Path, version: int) -> Path:
    return path / "versions" / f"{version:06d}"


def folders_on_disk(path: Path) -> list[int]:
    """Numbers of versions that have a folder, ascending: those of expired ones may hold pages of later ones."""
    folder = path / "versions"
    if not folder.is_dir():
        return []
    return sorted(int(entry.name) for entry in folder.iterdir() if re.fullmatch(r"\d{6,}", entry.name))


def versions_on_disk(path: Path) -> list[int]:
    """Versions that can be opened, oldest first; whether current or not."""
    return [n for n in folders_on_disk(path) if (version_folder(path, n) / MANIFEST_FILE).exists()]


def refuse_expired(path: Path, version: int) -> None:
    """Stop when a version was never there, or is there no more."""
    versions = versions_on_disk(path)
    if version not in versions:
        raise StoreError(
            f"version {version} of {path} has no {MANIFEST_FILE}: it was expired, or never built",
            code="no_such_version",
            next_move=f"open one of these: {versions}",
            version=version,
            versions=versions,
        )


def current_version(path: Path) -> int:
    """The version that readers open when they name none."""
    if not (path / "CURRENT").exists():
        raise StoreError(
            f"no master data at {path}",
            code="no_master_data",
            next_move="build it with MasterData.build(..., path=...), or check the path",
            path=str(path),
        )
    record = read_sealed(path / "CURRENT")
    refuse_other_format(record, path / "CURRENT")
    return cast("int", record["version"])


def switch_current(path: Path, version: int) -> None:
    write_sealed(path / "CURRENT", {"format_version": FORMAT_VERSION, "version": version})


def refuse_other_format(record: dict[str, Any], file: Path) -> None:
    found = record.get("format_version")
    if found not in READABLE_FORMATS:
        raise StoreError(
            f"{file} has format version {found}, this Tidemill reads {READABLE_FORMATS[0]} to {FORMAT_VERSION}",
            code="format_version",
            next_move="upgrade Tidemill, or build the master data again",
            file=str(file),
            found=found,
        )


__all__ = [
    "BLOCKS_FILE",
    "FORMAT_VERSION",
    "INDEX_FILE",
    "KEYS_FILE",
    "MANIFEST_FILE",
    "PAGES_FILE",
    "PAGE_ALIGNMENT_BYTES",
    "RUN_BYTES",
    "Manifest",
    "PageFile",
    "PageOrder",
    "current_version",
    "folders_on_disk",
    "refuse_expired",
    "refuse_other_format",
    "schema_as_text",
    "switch_current",
    "version_folder",
    "versions_on_disk",
]
