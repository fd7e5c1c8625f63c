"""What a page of master data costs to read: size of pages, single pages or runs, page cache or direct I/O.

`python benchmarks/master_pages.py` takes some ten seconds; `--json FILE` keeps the numbers.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from tidemill.lab.envelope import write_results
from tidemill.master import MasterData

PAGE_BYTES = (16 * 1024, 64 * 1024)
WAYS = [(False, 1), (True, 1), (True, 4), (True, 16)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--reads", type=int, default=1000, help="single pages of each measurement")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for page_bytes in PAGE_BYTES:
            path = Path(folder) / str(page_bytes)
            started = time.perf_counter()
            MasterData.build(master_table(options.rows), key="id", path=path, page_bytes=page_bytes)
            print(f"built {options.rows:,} rows in {time.perf_counter() - started:.1f} s")
            results += list(measure(path, options.reads, options.seed))
    print(f"{'page':>7} {'path':<18} {'access':<8} {'us/page':>8} {'MB/s':>8} {'rows/s':>12}")
    for row in results:
        print(
            f"{row['page_bytes'] // 1024:>4} KiB {row['path']:<18} {row['access']:<8} {row['us_per_page']:8.1f} "
            f"{row['bytes_per_s'] / 1e6:8.0f} {row['rows_per_s']:12,.0f}"
        )
    if options.json:
        write_results(options.json, "master_pages", options.seed, results)


def master_table(rows: int) -> pa.Table:
    """Eight columns of about 120 bytes, two of them strings."""
    numbers = np.arange(rows, dtype=np.int64)
    texts = [np.char.add(f"text number {n} of product ", numbers.astype("U10")) for n in range(2)]
    return pa.table(
        {
            "id": numbers,
            **{f"t{n}": text for n, text in enumerate(texts)},
            **{f"m{n}": numbers * n for n in range(5)},
        }
    )


def measure(path: Path, reads: int, seed: int) -> Iterator[dict[str, Any]]:
    for direct, in_flight in WAYS:
        master = MasterData.open(path, direct=direct, reads_in_flight=in_flight)
        name = f"{'direct' if direct else 'page cache'}, {in_flight} in flight"
        chosen = np.random.default_rng(seed).choice(master.pages, min(reads, master.pages), replace=False)
        yield timed(master, name, "single", lambda master=master, chosen=chosen: master.read_pages(chosen))
        yield timed(master, name, "scan", lambda master=master: [None for _ in master.scan()])
        master.close()
    yield from costs_without_disk(path)


def timed(master: MasterData, path: str, access: str, work: Any) -> dict[str, Any]:
    work()  # warm: the page cache, the threads, the allocator
    pages, read_bytes = master.pages_read, master.bytes_read
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    pages = master.pages_read - pages
    return {
        "page_bytes": master.manifest.page_bytes,
        "path": path,
        "access": access,
        "us_per_page": seconds / pages * 1e6,
        "bytes_per_s": (master.bytes_read - read_bytes) / seconds,
        "rows_per_s": pages * master.rows / master.pages / seconds,
    }


def costs_without_disk(path: Path, repetitions: int = 2000) -> Iterator[dict[str, Any]]:
    """Checksum, and checksum with decoding, of one page that is in memory."""
    master = MasterData.open(path)
    stored = master.read_page(0).serialize()
    page = pa.py_buffer(stored.to_pybytes())
    schema = master.schema
    works = {
        "checksum": lambda: google_crc32c.value(page),
        "decode": lambda: pa.ipc.read_record_batch(page, schema),
    }
    for access, work in works.items():
        started = time.perf_counter()
        for _ in range(repetitions):
            work()
        seconds = (time.perf_counter() - started) / repetitions
        yield {
            "page_bytes": master.manifest.page_bytes,
            "path": "memory",
            "access": access,
            "us_per_page": seconds * 1e6,
            "bytes_per_s": page.size / seconds,
            "rows_per_s": master.page_rows(0) / seconds,
        }


if __name__ == "__main__":
    main()
