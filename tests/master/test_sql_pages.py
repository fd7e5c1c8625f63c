"""How a table in key order is cut into pages, whatever its batches."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.master.groups import CodeCollisionError
from tidemill.master.keys import KeyForm
from tidemill.master.sql_pages import cut_pages
from tidemill.master.sql_table import DIGEST, SIZE

KEY_COUNTS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=30)


@given(
    steps=KEY_COUNTS,
    sizes=st.randoms(use_true_random=False),
    page_bytes=st.integers(1, 200),
    chop=st.integers(1, 9),
    is_text=st.booleans(),
)
def test_every_row_lies_in_one_page_and_every_key_too(
    steps: list[tuple[int, int]], sizes: "np.random.Generator", page_bytes: int, chop: int, is_text: bool
):
    keys = [f"{key:05}" if is_text else key for key, n in _rising(steps) for _ in range(n)]
    lengths = [sizes.randint(0, 40) for _ in keys]
    kind = pa.string() if is_text else pa.int64()
    schema = pa.schema([("k", kind), (SIZE, pa.int64()), (DIGEST, pa.int64())])
    whole = pa.RecordBatch.from_arrays(
        [pa.array(keys, kind), pa.array(lengths, pa.int64()), pa.array(range(len(keys)), pa.int64())],
        schema=schema,
    )
    form = KeyForm.choose(pa.schema([("k", kind)]), ["k"])
    batches = (whole.slice(at, chop) for at in range(0, len(keys), chop))
    pages = cut_pages(batches, form, fixed_row_bytes=9, page_bytes=page_bytes, memory_bytes=10**6)

    first, last = (part.column("k").to_pylist() for part in (pages.first_key, pages.last_key))
    ends = np.cumsum(pages.rows)
    assert [keys[end - n] for end, n in zip(ends, pages.rows, strict=True)] == first
    assert [keys[end - 1] for end in ends] == last
    assert all(low < high for low, high in zip(last[:-1], first[1:], strict=True))
    assert int(pages.rows.sum()) == len(keys)
    row_bytes = np.array([(9 + length + 7) // 8 * 8 for length in lengths])
    assert [
        row_bytes[end - n : end].sum() for end, n in zip(ends, pages.rows, strict=True)
    ] == pages.bytes.tolist()
    longest_key = max((row_bytes[[k == key for k in keys]].sum() for key in set(keys)), default=0)
    assert pages.bytes.max(initial=0) <= page_bytes + longest_key
    asked = pa.array([*keys, "no such key" if is_text else -1], kind)
    page, count = pages.locate(form.codes([asked])[0])
    assert count.tolist() == [1] * len(keys) + [0]
    assert page[:-1].tolist() == np.repeat(np.arange(len(ends)), pages.rows).tolist()
    assert pages.digest == sum(range(len(keys)))


def _rising(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    keys = np.cumsum([step for step, _ in steps]).tolist()
    return list(zip(keys, (n for _, n in steps), strict=True))


def test_a_key_that_comes_again_after_others_is_never_indexed_twice():
    """As a collation would do it that takes two texts for equal: rows of a key would be overlooked."""
    schema = pa.schema([("k", pa.string()), (SIZE, pa.int64()), (DIGEST, pa.int64())])
    rows = pa.RecordBatch.from_arrays([pa.array(["A", "a", "A"]), *[pa.array([0, 0, 0])] * 2], schema=schema)
    form = KeyForm.choose(pa.schema([("k", pa.string())]), ["k"])
    with pytest.raises(CodeCollisionError):
        cut_pages(iter([rows]), form, fixed_row_bytes=9, page_bytes=1, memory_bytes=10**6)
