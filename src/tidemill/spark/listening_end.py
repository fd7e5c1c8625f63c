"""Ends listening to a session, over Spark Connect too, where PySpark's own way may wait for ever.

PySpark 4.3 holds the lock of its listeners while it waits for the thread that hands events to them, and this thread needs
the lock for each event. An event on its way when the last listener goes makes both wait for each other: with a batch
every 100 ms and 10 ms to tell the server, one end in ten.
"""

import threading
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

_one_at_a_time = threading.Lock()


def stop_listening(spark: SparkSession, listener: StreamingQueryListener) -> None:
    """Remove the listener; events that are on their way still reach it."""
    streams: Any = spark.streams
    bus = getattr(streams, "_sqlb", None)  # of Spark Connect alone
    if bus is None:
        streams.removeListener(listener)
        return
    with _one_at_a_time:
        if bus._execution_thread is not None:  # noqa: SLF001 - PySpark offers no other way to its lock
            bus._execution_thread = _JoinedUnlocked(bus._execution_thread, bus._lock)  # noqa: SLF001
        streams.removeListener(listener)
        if isinstance(bus._execution_thread, _JoinedUnlocked):  # noqa: SLF001 - others listen still
            bus._execution_thread = bus._execution_thread.thread  # noqa: SLF001


class _JoinedUnlocked:
    """In place of the thread that hands out events: whoever joins it lets go of the lock meanwhile."""

    def __init__(self, thread: threading.Thread, lock: threading.Lock) -> None:
        self.thread = thread
        self._lock = lock

    def join(self) -> None:
        self._lock.release()
        try:
            self.thread.join()
        finally:
            self._lock.acquire()


__all__ = ["stop_listening"]
