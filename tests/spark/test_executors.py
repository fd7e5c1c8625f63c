"""Workers among which memory is shared: those of executors that are there, and of those that are promised."""

from collections import Counter

import pytest

from tidemill.spark.executors import Executors, reckoned
from tidemill.spark.promise import Promise, promise_of

DYNAMIC = "spark.dynamicAllocation"
NONE_YET = Executors(0, Counter())


def promised(master: str, **settings: object) -> Promise:
    """Of settings with their common beginning left out."""
    told = {f"spark.{name.replace('_', '.')}": str(value) for name, value in settings.items()}
    told = {
        name.replace("spark.dynamic.", f"{DYNAMIC}."): value for name, value in (told | {"spark.master": master}).items()
    }  # fmt: skip
    return promise_of(told.get)


@pytest.mark.parametrize(
    ("promise", "tasks", "at_start", "each"),
    [
        (promised("local-cluster[2,3,1024]"), 6, 6, 3),
        (promised("local-cluster[2, 4, 1024]", executor_cores=3, task_cpus=2), 2, 2, 1),
        (promised("local-cluster[8,2,1024]", cores_max=4), 4, 4, 2),
        (promised("spark://a:1"), None, 1, None),
        (promised("spark://a:1", executor_cores=4), None, 1, 4),
        (promised("spark://a:1", cores_max=12), 12, 12, None),
        (promised("spark://a:1", cores_max=10, executor_cores=4), 8, 8, 4),
        (promised("spark://a:1", cores_max=10, executor_cores=4, task_cpus=2), 4, 4, 2),
        (promised("yarn"), 2, 2, 1),
        (promised("yarn", executor_instances=5, executor_cores=4), 20, 20, 4),
        (promised("k8s://https://a", executor_instances=5, executor_cores=4, task_cpus=3), 5, 5, 1),
        (promised("yarn", cores_max=1, executor_instances=5), 5, 5, 1),
        (promised("yarn", dynamic_enabled="true", executor_cores=4), None, 0, 4),
        (promised("yarn", dynamic_enabled="true", executor_cores=4, dynamic_maxExecutors=6), 24, 0, 4),
        (promised("yarn", dynamic_enabled="true", dynamic_initialExecutors=3, executor_cores=2), None, 6, 2),
        (promised("spark://a:1", dynamic_enabled="true", dynamic_maxExecutors=6), None, 0, None),
    ],
)
def test_what_settings_promise(promise: Promise, tasks: int | None, at_start: int, each: int | None) -> None:
    assert (promise.tasks, promise.at_start, promise.of_an_executor) == (tasks, at_start, each)


YARN = promised("yarn", executor_instances=8, executor_cores=4)
GROWING = promised("yarn", dynamic_enabled="true", executor_cores=4, dynamic_maxExecutors=100)
BOUNDLESS = promised("yarn", dynamic_enabled="true", executor_cores=4)
STANDALONE = promised("spark://a:1")


@pytest.mark.parametrize(
    ("promise", "there", "tasks", "of_a_host", "at_most"),
    [
        # Eight executors on a host, of which none is there yet: each has an eighth.
        (promised("local-cluster[8,1,1024]"), NONE_YET, None, 8, 8),
        (promised("local-cluster[8,1,1024]"), Executors(1, Counter(a=1)), None, 8, 8),
        (YARN, NONE_YET, None, 32, 32),
        (YARN, Executors(32, Counter(a=2, b=2, c=2, d=2)), None, 8, 32),
        (YARN, Executors(16, Counter(a=1, b=2, c=1)), None, 16, 32),
        (YARN, Executors(32, Counter(a=4, b=4)), 500, 16, 32),
        (YARN, Executors(40, Counter(a=10)), None, 40, 40),
        # Nobody knows how many will come, or where to: a host has its cores.
        (STANDALONE, NONE_YET, None, 6, None),
        (STANDALONE, NONE_YET, 20, 20, None),
        (STANDALONE, Executors(8, Counter(a=1, b=1)), None, 4, None),
        (STANDALONE, Executors(8, Counter(a=1, b=1)), 64, 4, None),
        (BOUNDLESS, NONE_YET, None, 6, None),
        (BOUNDLESS, NONE_YET, 3, 3, None),
        (BOUNDLESS, Executors(8, Counter(a=2)), None, 8, None),
        (BOUNDLESS, Executors(8, Counter(a=1, b=1)), 64, 6, None),
        (GROWING, NONE_YET, None, 6, 400),
        (GROWING, Executors(8, Counter(a=1, b=1)), None, 6, 400),
        (GROWING, Executors(24, Counter(a=3, b=3)), None, 12, 400),
    ],
)
def test_what_is_reckoned_with(
    promise: Promise, there: Executors, tasks: int | None, of_a_host: int, at_most: int | None
) -> None:
    found = reckoned(promise, there, tasks, cores_here=6)
    assert (found.of_a_host, found.at_most) == (of_a_host, at_most)
