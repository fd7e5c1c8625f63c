"""The LRU peer is a true LRU cache: rows in use stay, the others leave, and rows are right while they do."""

from itertools import chain

import numpy as np
import pyarrow as pa
import pytest

from tidemill.lab.join_data import JoinData
from tidemill.lab.peers.lru import LruCache
from tidemill.lab.streams import STREAM_SCHEMA
from tidemill.lab.verify import Judge

HOT_KEYS = np.array([3, 7_000, 19_999])


def test_rows_in_use_stay_while_thousands_pass(data: JoinData, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = LruCache(data, memory_bytes=200_000)
    asked: list[int] = []
    lookup = cache._store.lookup
    monkeypatch.setattr(cache._store, "lookup", lambda keys: (asked.extend(keys.tolist()), lookup(keys))[1])
    others = np.setdiff1d(np.arange(data.rows), HOT_KEYS).reshape(-1, 1)[:3_000].reshape(-1, 4)
    keys = np.hstack([np.tile(HOT_KEYS, (len(others), 1)), others]).ravel()
    pieces = np.ones(len(keys), np.int32)
    stream = [pa.record_batch([keys, np.arange(len(keys)), pieces], schema=STREAM_SCHEMA)]
    outputs = chain.from_iterable(cache.join(stream))
    assert Judge(data).same_rows(outputs, stream)
    assert len(cache._keys) < others.size / 2  # most have left
    assert [asked.count(key) for key in HOT_KEYS.tolist()] == [1, 1, 1]
