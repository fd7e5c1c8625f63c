"""The page cache helps nobody: what a peer needs comes from disk, and the kernel's count shows it."""

import numpy as np
import pytest

from tidemill.lab.join_data import JoinData
from tidemill.lab.kernel_counts import KernelCounts, drop_from_cache
from tidemill.lab.peers import open_peer
from tidemill.lab.store import open_store
from tidemill.lab.streams import stream_batches

SMALL_BUDGET_BYTES = 100_000


def test_a_dropped_file_is_read_from_disk_again_and_a_cached_one_is_not(on_disk: JoinData) -> None:
    file_bytes = on_disk.parquet.stat().st_size
    drop_from_cache(on_disk.parquet)
    before = KernelCounts.now()
    on_disk.parquet.read_bytes()
    cold = KernelCounts.now()
    on_disk.parquet.read_bytes()
    assert cold.since(before).bytes_read >= file_bytes
    assert cold.since(before).reads >= 1
    assert KernelCounts.now().since(cold).bytes_read < file_bytes / 10


def test_the_kernel_counts_what_the_store_counts(on_disk: JoinData) -> None:
    store = open_store(on_disk)
    before = KernelCounts.now()
    store.read_pages(range(0, store.pages, 2))
    counted = KernelCounts.now().since(before)
    assert counted.bytes_read == pytest.approx(store.bytes_read, rel=0.5)  # direct reads are whole blocks
    assert counted.reads >= store.pages_read


def test_reads_asked_for_by_the_dozen_count_each(on_disk: JoinData) -> None:
    store = open_store(on_disk)
    scattered = np.arange(0, min(store.pages, 60), 3)
    assert len(scattered) > 10
    before = KernelCounts.now()
    store.begin_pages(scattered).result()
    counted = KernelCounts.now().since(before)
    # The count itself reads two small files, which are calls too.
    assert store.reads <= counted.reads <= store.reads + 5
    assert counted.bytes_read / counted.reads == pytest.approx(store.bytes_read / store.reads, rel=0.5)


@pytest.mark.parametrize("name", ["peer-sqlite-inl", "peer-lmdb-inl", "peer-duckdb", "peer-polars"])
def test_a_peer_that_read_everything_once_reads_from_disk_again(name: str, on_disk: JoinData) -> None:
    stream = list(stream_batches(on_disk.rows, 0.0, 4000, seed=1))
    peer = open_peer(name, on_disk, SMALL_BUDGET_BYTES)
    for _ in peer.join(stream):
        pass
    before = KernelCounts.now()
    for _ in peer.join(stream):
        pass
    scanned_bytes = on_disk.parquet.stat().st_size if "inl" not in name else 4000 * 100
    assert KernelCounts.now().since(before).bytes_read > scanned_bytes / 2
