"""A listener of streaming queries that hardly slows them: it takes the progress of a batch as one text.

PySpark's own bridge asks the JVM for every entry of every map of a progress, one call over a socket each, and holds the
interpreter meanwhile: 88 ms for each batch of the demo on two busy cores. One text of JSON takes 2.
"""

import json
from typing import Any, ClassVar

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

JavaObject = Any


class ProgressListener(StreamingQueryListener):
    """What classic Spark calls through a bridge of our own; over Spark Connect a listener as any other.

    Hears of progress and of ends. Of starts and of idle queries it does not: nothing here needs them, and a start would
    hold up the query.
    """

    @property
    def _jlistener(self) -> JavaObject:
        """What `addListener` and `removeListener` of classic Spark hand to the JVM."""
        if not hasattr(self, "_bridge"):
            jvm: Any = SparkContext._jvm  # noqa: SLF001 - as the class above does
            self._bridge = jvm.PythonStreamingQueryListenerWrapper(_Bridge(self))
        return self._bridge


class _Bridge:
    """Turns the JVM's events into PySpark's."""

    def __init__(self, listener: StreamingQueryListener) -> None:
        self._listener = listener

    def onQueryStarted(self, event: JavaObject) -> None:  # noqa: N802
        """Not heard."""

    def onQueryIdle(self, event: JavaObject) -> None:  # noqa: N802
        """Not heard."""

    def onQueryProgress(self, event: JavaObject) -> None:  # noqa: N802
        progress = StreamingQueryProgress.fromJson(json.loads(event.progress().json()))
        self._listener.onQueryProgress(QueryProgressEvent(progress))

    def onQueryTerminated(self, event: JavaObject) -> None:  # noqa: N802
        self._listener.onQueryTerminated(QueryTerminatedEvent.fromJObject(event))

    class Java:
        implements: ClassVar[list[str]] = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


__all__ = ["ProgressListener"]
