"""Index nested loops: a read a row, whatever else."""

from dataclasses import replace

import pytest

from tidemill.core.errors import BudgetError
from tidemill.model.cost.inl import MODEL
from tidemill.model.work import COSTS_OF_2008
from tidemill.model.workload import Workload

# 1,000 pages of 100 rows.
SALES = Workload(
    master_rows=100_000, master_row_bytes=160, stream_row_bytes=24, zipf_exponent=1.0, page_bytes=16_000
)


def work_of(workload: Workload, memory_bytes: int = 8_000_000):
    return MODEL.steady_state(workload, MODEL.default_sizes(workload, memory_bytes)).work_per_row


def test_a_row_reads_its_page():
    work = work_of(SALES)
    assert (work.reads, work.read_bytes, work.master_rows, work.output_rows) == (1, 16_000, 100, 1)
    assert (work.added, work.removed, work.hot_probes) == (0, 0, 0)


def test_rows_beyond_all_keys_are_not_looked_for():
    work = work_of(replace(SALES, matched_share=0.25))
    assert (work.reads, work.read_bytes, work.output_rows) == (0.25, 4_000, 0.25)


def test_many_rows_of_a_key_reach_into_the_next_page():
    work = work_of(replace(SALES, rows_per_key=51.0))
    assert (work.reads, work.read_bytes, work.output_rows) == (1, 1.5 * 16_000, 51)


def test_neither_memory_nor_skew_help():
    rates = {
        round(MODEL.steady_state(one, MODEL.default_sizes(one, memory)).rows_per_s(COSTS_OF_2008), 1)
        for one in (SALES, replace(SALES, zipf_exponent=0.0))
        for memory in (4_000_000, 400_000_000)
    }
    # 12.5 ms and 16,000 / 72e6 = 0.22 ms for the page, 5 µs for its rows, 1.4 µs for the row: 12.73 ms
    assert rates == {78.6}


def test_too_little_memory_names_what_works():
    with pytest.raises(BudgetError) as refusal:
        MODEL.default_sizes(SALES, 1_000)
    assert MODEL.default_sizes(SALES, refusal.value.least_bytes).pages_per_step == 1
