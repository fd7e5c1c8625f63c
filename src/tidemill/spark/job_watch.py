"""Run a Spark action and hear how far it is, in the thread that called it."""

import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

_POLL_SECONDS = 0.2
_GROUP = "spark.jobGroup.id"

T = TypeVar("T")


def watched(session: SparkSession, action: Callable[[], T], tick: Callable[[float], None]) -> T:
    """What the action gives; meanwhile `tick` is called with the share of its tasks that is done, 0 … 1.

    The stage that runs last counts from its first finished task on. An error of `tick`, or a Ctrl-C, ends the action's
    jobs. Over Spark Connect, which does not tell tasks, the share stays 0.
    """
    tag = f"tidemill-{uuid.uuid4().hex}"
    context: SparkContext | None = getattr(session, "sparkContext", None)
    # A job group of the user's stays: it is by this that notebooks cancel what they started.
    group = (context and context.getLocalProperty(_GROUP)) or tag
    jobs = _Jobs(context, group)

    # Tags of the session itself, as over Spark Connect, end nothing in a classic session: tried with 4.3.
    end_tagged = session.interruptTag if context is None else context.cancelJobsWithTag

    def run() -> T:
        if context is None:
            session.addTag(tag)
        else:
            context.addJobTag(tag)
            context.setLocalProperty(_GROUP, group)
        return action()

    with ThreadPoolExecutor(1, thread_name_prefix="tidemill-job") as pool:
        future: Future[T] = pool.submit(inheritable_thread_target(session)(run))
        try:
            while not wait([future], timeout=_POLL_SECONDS).done:
                tick(jobs.share())
        except BaseException:
            # Again and again: a job that is still being planned is not there to be ended.
            while not wait([future], timeout=_POLL_SECONDS).done:
                end_tagged(tag)
            raise
    return future.result()


class _Jobs:
    """The jobs of a group that were not there at the start."""

    def __init__(self, context: SparkContext | None, group: str) -> None:
        self._tracker = context.statusTracker() if context is not None else None
        self._group = group
        self._before = self._ids()

    def share(self) -> float:
        if self._tracker is None:
            return 0.0
        jobs = [self._tracker.getJobInfo(job) for job in self._ids() - self._before]
        numbers = sorted({int(stage) for job in jobs if job is not None for stage in job.stageIds})
        stages = [stage for stage in map(self._tracker.getStageInfo, numbers) if stage is not None]
        if stages and not stages[-1].numCompletedTasks:
            stages.pop()
        tasks = sum(stage.numTasks for stage in stages)
        return sum(stage.numCompletedTasks for stage in stages) / max(1, tasks)

    def _ids(self) -> set[int]:
        return set(self._tracker.getJobIdsForGroup(self._group)) if self._tracker is not None else set()


__all__ = ["watched"]
