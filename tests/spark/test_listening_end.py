"""A listener goes while an event is on its way: with PySpark's own lock and thread of Connect, neither waits for ever."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener

from tidemill.spark.listening_end import stop_listening

pytest.importorskip("grpc", reason="Spark Connect needs grpcio and its kin")
pytestmark = pytest.mark.timeout(60)


class Heard(StreamingQueryListener):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        self.events.append(event)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self.events.append(event)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        self.events.append(event)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.events.append(event)


class Server:
    """What a bus asks of its server: events come when it is told that the last listener goes, not before."""

    def __init__(self) -> None:
        self.goes = threading.Event()
        self.client = self

    def execute_command(self, _: Any) -> None:
        self.goes.set()

    def execute_command_as_iterator(self, _: Any) -> Iterator[dict[str, Any]]:
        added = SimpleNamespace(HasField=lambda name: name == "listener_bus_listener_added", events=[])
        yield {"streaming_query_listener_events_result": added}
        self.goes.wait()
        yield {"streaming_query_listener_events_result": SimpleNamespace(events=["on its way"])}


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    from pyspark.sql.connect.streaming.query import StreamingQueryListenerBus

    monkeypatch.setattr(
        StreamingQueryListenerBus,
        "deserialize",
        staticmethod(lambda _: QueryProgressEvent.__new__(QueryProgressEvent)),
    )
    bus = StreamingQueryListenerBus(SimpleNamespace(_session=Server()))  # type: ignore[arg-type]
    streams = SimpleNamespace(_sqlb=bus, addListener=bus.append, removeListener=bus.remove)
    return SimpleNamespace(streams=streams)


def test_an_event_on_its_way_is_heard_and_holds_nobody_up(session: Any) -> None:
    heard = Heard()
    session.streams.addListener(heard)
    stop_listening(session, heard)
    assert len(heard.events) == 1
    assert session.streams._sqlb._execution_thread is None
    session.streams._sqlb._sqm._session.goes.clear()
    session.streams.addListener(heard)  # and may be added again
    stop_listening(session, heard)
    assert len(heard.events) == 2


def test_others_go_on_listening(session: Any) -> None:
    one, other = Heard(), Heard()
    session.streams.addListener(one)
    session.streams.addListener(other)
    stop_listening(session, one)
    assert isinstance(session.streams._sqlb._execution_thread, threading.Thread)
    stop_listening(session, other)
    assert (len(one.events), len(other.events)) == (0, 1)
