"""Read paths: the same pages by whatever path, counted, within known buffers."""

import errno
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.core.errors import SpecError, StoreError
from tidemill.master import MasterData
from tidemill.master.layout import INDEX_FILE, MANIFEST_FILE, PAGE_ALIGNMENT_BYTES, PAGES_FILE, RUN_BYTES
from tidemill.master.page_files import PageFiles

ROWS = 60_000
HOWS = [(direct, flight) for direct in (False, True) for flight in (1, 4)]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return pa.table({"id": np.arange(ROWS) // 3 * 2, "name": [f"name {n} " * 4 for n in range(ROWS)]})


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> dict[tuple[bool, int], MasterData]:
    path = tmp_path_factory.mktemp("store")
    MasterData.build(table, key="id", path=path, page_bytes=4096)
    return {how: MasterData.open(path, direct=how[0], reads_in_flight=how[1]) for how in HOWS}


@pytest.fixture(params=HOWS, ids=str)
def store(request: pytest.FixtureRequest, stores: dict[tuple[bool, int], MasterData]) -> MasterData:
    return stores[request.param]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pages=st.lists(st.integers(0, 150), max_size=40), run=st.tuples(st.integers(0, 90), st.integers(0, 60))
)
def test_every_path_reads_the_same_pages(
    stores: dict[tuple[bool, int], MasterData], pages: list[int], run: tuple[int, int]
):
    wanted = [*pages, *range(run[0], run[0] + run[1])]
    plain, *others = (store.read_pages(wanted) for store in stores.values())
    first_codes = stores[False, 1].index.first_code[np.array(wanted, dtype=np.int64)]
    assert [page.column("id")[0].as_py() for page in plain] == first_codes.tolist()
    for other in others:
        assert len(other) == len(plain)
        assert all(one.equals(two) for one, two in zip(other, plain, strict=True))


def test_pages_bytes_and_seconds_are_counted(store: MasterData):
    pages = [0, 1, 2, 9, 30, 31]
    before = (store.pages_read, store.bytes_read, store.read_seconds)
    store.read_pages(pages)
    assert store.pages_read - before[0] == 6
    assert store.bytes_read - before[1] == 6 * PAGE_ALIGNMENT_BYTES
    assert 0 < store.read_seconds - before[2] < 5


def test_seconds_of_the_caller_are_not_counted(store: MasterData):
    before = store.read_seconds
    scan = store.scan()
    next(scan)
    threading.Event().wait(0.2)
    next(scan)
    assert store.read_seconds - before < 0.1


@pytest.mark.parametrize("from_page", [0, 1, 77])
def test_a_scan_wraps_around_once(store: MasterData, table: pa.Table, from_page: int):
    rows = pa.Table.from_batches(store.scan(from_page)).column("id").to_numpy()
    start = sum(page.num_rows for page in store.read_pages(range(from_page)))
    assert (rows == np.roll(table.column("id").to_numpy(), -start)).all()


def test_a_scan_holds_no_more_than_the_reads_in_flight(stores: dict[tuple[bool, int], MasterData]):
    for (_, flight), store in stores.items():
        before = pa.total_allocated_bytes()
        scan = store.scan()
        most = max(pa.total_allocated_bytes() - before for _ in scan)
        assert store.manifest.files[0].bytes > 8 * RUN_BYTES
        assert most <= (flight + 2) * (RUN_BYTES + 2 * PAGE_ALIGNMENT_BYTES) + 64_000


@pytest.mark.parametrize(("first", "last"), [(10, 10), (9, 11), (-5, 3), (7999, 99_999), (50, 40), (0, 2000)])
def test_key_ranges_include_both_ends(store: MasterData, table: pa.Table, first: int, last: int):
    keys = table.column("id").to_numpy()
    found = [key for batch in store.read_range(first, last) for key in batch.column("id").to_pylist()]
    assert found == keys[(keys >= first) & (keys <= last)].tolist()


def test_ranges_need_pages_in_key_order(tmp_path: Path):
    hashed = MasterData.build(pa.table({"k": ["a", "b"]}), key="k", path=tmp_path)
    with pytest.raises(SpecError) as refusal:
        list(hashed.read_range("a", "b"))
    assert refusal.value.code == "no_key_order"


def test_lookups_of_hashed_and_composite_keys(tmp_path: Path):
    rows = {"s": [1, 1, 2, 1], "k": ["a", "b", "a", "a"], "n": [0, 1, 2, 3]}
    master = MasterData.build(pa.table(rows), key=("s", "k"), path=tmp_path)
    asked = [pa.array([2, 1, 1, None]), pa.array(["a", "x", "a", "a"])]
    position, found = master.lookup(asked)
    assert position.tolist() == [0, 2, 2]
    assert found.to_pydict() == {"s": [2, 1, 1], "k": ["a", "a", "a"], "n": [2, 0, 3]}


def test_a_handle_keeps_its_way_of_reading_when_it_moves(store: MasterData):
    other = pickle.loads(pickle.dumps(store))
    assert other._reader.direct == store._reader.direct
    assert other._reader.reads_in_flight == store._reader.reads_in_flight


def test_a_file_system_without_direct_io_says_so(stores, monkeypatch: pytest.MonkeyPatch):
    path = stores[False, 1].path

    def refusing(file, flags, *rest):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(file, flags, *rest)

    real = os.open
    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(StoreError, match="direct=False") as refusal:
        MasterData.open(path, direct=True)
    assert refusal.value.code == "no_direct_io"
    assert MasterData.open(path).rows == ROWS


def test_a_read_that_fails_names_its_page(stores, monkeypatch: pytest.MonkeyPatch):
    def failing(*_):
        raise OSError(errno.EIO, "Input/output error")

    # A compiled read only says that it failed; what is asked for the reason fails here.
    monkeypatch.setattr(os, "preadv", failing)
    monkeypatch.setattr(PageFiles, "handles", property(lambda files: np.full(len(files.paths), -1)))
    for store in stores.values():
        with pytest.raises(StoreError, match=r"page 5 .*Input/output error") as refusal:
            store.read_pages([5, 6])
        assert refusal.value.page == 5
        assert (refusal.value.code, refusal.value.retryable) == ("page_unreadable", True)
        assert "run it again" in refusal.value.next_move


@pytest.mark.parametrize(
    ("number", "passes"),
    [
        (errno.EIO, True),
        (errno.ESTALE, True),
        (errno.EMFILE, True),
        (errno.ENOENT, False),
        (errno.EACCES, False),
    ],
)
@pytest.mark.parametrize("name", [PAGES_FILE, INDEX_FILE, MANIFEST_FILE])
def test_a_file_that_cannot_be_opened_may_be_tried_again_if_that_may_pass(
    stores, monkeypatch: pytest.MonkeyPatch, name: str, number: int, *, passes: bool
):
    path = stores[False, 1].path

    def refusing(real):
        def opened(file, *rest, **more):
            if str(file).endswith(name):
                raise OSError(number, os.strerror(number), str(file))
            return real(file, *rest, **more)

        return opened

    monkeypatch.setattr(os, "open", refusing(os.open))
    monkeypatch.setattr(pa, "memory_map", refusing(pa.memory_map))
    monkeypatch.setattr(Path, "read_bytes", refusing(Path.read_bytes))
    with pytest.raises(StoreError, match=name) as refusal:
        MasterData.open(path)
    assert (refusal.value.code, refusal.value.retryable) == ("unreadable", passes)
    assert ("run it again" in refusal.value.next_move) == passes


def test_no_thread_is_left_after_close(tmp_path: Path):
    MasterData.build(pa.table({"id": [1, 2]}), key="id", path=tmp_path)
    before = threading.active_count()
    store = MasterData.open(tmp_path, reads_in_flight=3)
    store.read_page(0)
    store.close()
    store.close()
    assert threading.active_count() == before


def test_no_reads_in_flight_is_refused(stores):
    with pytest.raises(SpecError, match="1 or more"):
        MasterData.open(stores[False, 1].path, reads_in_flight=0)
