"""The watch adds up what tasks told and raises each alarm once until it is over again."""

import json
import logging
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import pytest
from pyspark.sql import Row
from rich.console import Console

from tidemill.core.errors import SpecError
from tidemill.spark.metrics import TASKS_FIELD
from tidemill.spark.metrics_records import BatchMetrics, LookupMetrics, lookups_of
from tidemill.spark.watch import Watch
from tidemill.spark.watch_alarms import Alarm, Alarms, Limits

QUERY = UUID(int=7)


def told(partition: int = 0, **facts: Any) -> str:
    """A task's line."""
    lookup = {
        "lookup": "products",
        "version": 3,
        "master_rows": 50,
        "master_created_unix_ms": 1_000_000,
        "rows_in": 100,
        "hot_hits": 60,
        "disk_matches": 30,
        "unmatched": 10,
        "without_version": 0,
        "pages_read": 2,
        "bytes_read": 8192,
        "seconds": {"read": 0.5},
        "held_bytes": {"waiting": 500},
    }
    return json.dumps({"partition": partition, "lookups": [{**lookup, **facts}]})


def progress(lines: Sequence[str], batch_id: int = 0, name: str = "tidemill products 1") -> Any:
    class Progress:
        id = QUERY
        timestamp = "2026-01-01T00:00:00Z"
        batchDuration = 250  # noqa: N815 - Spark's name
        observedMetrics = {name: Row(TASKS_FIELD)("\n".join(lines)), "theirs": Row("rows")(5)}  # noqa: N815, RUF012

    Progress.batchId = batch_id  # type: ignore[attr-defined]
    Progress.name = "sales"  # type: ignore[attr-defined]

    class Event:
        progress = Progress

    return Event


def terminated(failure: str | None) -> Any:
    class Event:
        id = QUERY
        exception = failure

    return Event


def test_tasks_of_a_batch_add_up_and_held_bytes_are_those_of_the_largest() -> None:
    [found] = lookups_of(
        {TASKS_FIELD: "\n".join([told(0), told(1, version=4, held_bytes={"waiting": 900, "index": 1})])}
    )
    assert (found.tasks, found.rows_in, found.hot_hits, found.pages_read) == (2, 200, 120, 4)
    assert found.versions == (3, 4)
    assert found.seconds == {"read": 1.0}
    assert found.held_bytes == {"waiting": 900, "index": 1}
    assert (found.unmatched_share, found.hot_share) == (0.1, 2 / 3)


def test_a_partition_that_was_computed_twice_counts_once() -> None:
    [found] = lookups_of({TASKS_FIELD: "\n".join([told(0), told(1), told(0), told(1)])})
    assert (found.tasks, found.rows_in) == (2, 200)


def test_a_batch_without_rows_tells_nothing() -> None:
    heard: list[BatchMetrics] = []
    watch = Watch(on_batch=heard.append)
    watch.onQueryProgress(progress([]))
    assert heard == []
    assert watch.batches == []


def test_the_last_batches_stay_and_totals_know_all() -> None:
    heard: list[BatchMetrics] = []
    watch = Watch(on_batch=heard.append, keep=2)
    for number in range(5):
        watch.onQueryProgress(progress([told()], number))
    assert [batch.batch_id for batch in heard] == [0, 1, 2, 3, 4]
    assert [batch.batch_id for batch in watch.batches] == [3, 4]
    [total] = watch.totals
    assert (total.rows_in, total.tasks) == (500, 5)
    found = json.loads(json.dumps(watch.as_dict()))
    assert found["batches"][1]["lookups"][0]["rows_in"] == 100
    assert found["batches"][1]["query_name"] == "sales"
    console = Console(width=120, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(watch.table())
    assert "products" in console.export_text()


def test_two_calls_of_a_query_are_told_apart() -> None:
    watch = Watch()
    watch.onQueryProgress(progress([told()], name="tidemill products 1"))
    watch.onQueryProgress(progress([told()], name="tidemill products 2"))
    assert [total.rows_in for total in watch.totals] == [100, 100]


def test_a_failing_callback_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: BatchMetrics) -> None:
        raise ValueError("mine")

    watch = Watch(on_batch=fail)
    watch.onQueryProgress(progress([told()]))
    assert len(watch.batches) == 1
    assert "mine" in caplog.text


def alarms_of(*batches: list[str], limits: Limits | None = None) -> list[tuple[int, str]]:
    raised: list[Alarm] = []
    watch = Watch(on_alarm=raised.append, limits=limits)
    for number, lines in enumerate(batches):
        watch.onQueryProgress(progress(lines, number))
    return [(alarm.batch_id, alarm.kind) for alarm in raised]


def test_an_alarm_is_raised_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = [told(unmatched=10)], [told(unmatched=90)]
    limits = Limits(unmatched_over_batches=1)
    with caplog.at_level(logging.WARNING):
        assert alarms_of(good, bad, bad, bad, good, bad, limits=limits) == [
            (1, "unmatched"),
            (5, "unmatched"),
        ]
    assert "90 of 100 rows found nothing in products: 90%, more than 50%" in caplog.text


def test_the_unmatched_share_is_that_of_several_batches() -> None:
    good, bad = [told(unmatched=10)], [told(unmatched=90)]
    assert alarms_of(good, good, good, bad) == []
    assert alarms_of(good, bad, bad, bad) == [(2, "unmatched")]


def test_an_empty_master_is_one_alarm_not_two() -> None:
    assert alarms_of([told(master_rows=0, unmatched=100)], [told(master_rows=0, unmatched=100)]) == [
        (0, "empty_master")
    ]


def test_a_stale_master_is_over_when_a_newer_version_is_used() -> None:
    now = 1_000.0
    alarms = Alarms(Limits(master_age_seconds=60), lambda: now)

    def judged(created_unix_ms: int) -> list[str]:
        [lookup] = lookups_of({TASKS_FIELD: told(master_created_unix_ms=created_unix_ms)})
        return [alarm.kind for alarm in alarms.judge(batch_of(lookup))]

    assert judged(990_000) == []
    assert judged(900_000) == ["stale_master"]
    assert judged(900_000) == []
    assert judged(995_000) == []
    now = 2_000.0
    assert judged(995_000) == ["stale_master"]


def batch_of(lookup: LookupMetrics) -> BatchMetrics:
    return BatchMetrics(
        query_id="q", query_name=None, observation="o", batch_id=0, started_at="", batch_ms=1, lookups=(lookup,)
    )  # fmt: skip


def test_a_query_that_ends_by_an_unreadable_store_is_an_alarm() -> None:
    raised: list[Alarm] = []
    watch = Watch(on_alarm=raised.append)
    watch.onQueryProgress(progress([told()], 4))
    watch.onQueryTerminated(terminated(None))
    watch.onQueryTerminated(terminated("ValueError: no business of ours"))
    assert raised == []
    trace = (
        "org.apache.spark...\n  tidemill.core.errors.StoreError: page 17 is corrupt. Next: rebuild\n  at ..."
    )
    watch.onQueryTerminated(terminated(trace))
    assert [(alarm.kind, alarm.batch_id, alarm.text) for alarm in raised] == [
        ("read_error", 5, "page 17 is corrupt. Next: rebuild")
    ]


@pytest.mark.parametrize(
    "wrong", [{"unmatched_share": 1.5}, {"unmatched_over_batches": 0}, {"master_age_seconds": 0}]
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SpecError, match="alarms cannot be raised"):
        Limits(**cast("Any", wrong))
