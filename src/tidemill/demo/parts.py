"""The parts of the demo as one running system: started in order, restarted when they die, ended in order."""

import time
from typing import Any

from tidemill.capture.hooks.sqlite import SqliteCapture
from tidemill.core.errors import InternalError, SpecError, StoreError
from tidemill.core.units import format_bytes
from tidemill.demo.children import Child
from tidemill.demo.monitor import Monitor
from tidemill.demo.places import Places
from tidemill.demo.products import PRODUCTS
from tidemill.demo.screen import Screen
from tidemill.demo.shop import SALES_SCHEMA
from tidemill.load.tokens import create_token
from tidemill.staging.log import StagingLog

LOG_MAX_BYTES = 4 * 10**9
LOG_LEAST_ROOM_BYTES = 10**6
RESTARTS_AT_MOST = 20
STALLED_AFTER_S = 120.0
LOOK_EVERY_S = 0.5


class Parts:
    """Loader, receiver, Spark driver and shop, each a process of its own, and the eye on them."""

    def __init__(self, places: Places, memory: str, screen: Screen) -> None:
        self.places = places
        self.monitor: Monitor
        self._memory = memory
        self._screen = screen
        self._ports = {"loader": 0, "receiver": 0}
        self._shop_hours: dict[str, Any] = {}
        self.loader = self._child("loader", "tidemill.load.service", self._loader_arguments)
        self.receiver = self._child("receiver", "tidemill.staging.receiver", self._receiver_arguments)
        self.driver = self._child("driver", "tidemill.demo.pipeline", self._driver_arguments)
        self.shop = self._child("shop", "tidemill.demo.shop", self._shop_arguments)

    def start(self) -> None:
        """Everything but the shop, ready for the first row."""
        places = self.places
        self._prepare_log()
        if not places.loader_token.exists():
            create_token(places.loader_token)
        self.monitor = Monitor(places)
        self.start_loader()
        self.receiver.start()
        self._ports["receiver"] = self.receiver.wait_ready(places.receiver_ready)["port"]
        self._screen.say(
            f"loader on port {self._ports['loader']}, receiver on port {self._ports['receiver']}"
        )
        self.driver.start()
        self._screen.say(f"starting Spark, some seconds (driver pid {self.driver.pid})")
        self.driver.wait_ready(places.driver_ready)

    def _prepare_log(self) -> None:
        """Create the staging log, or refuse one that has no room before anything starts."""
        place = self.places.log
        if not place.exists():
            schema = SqliteCapture.schema_for(SALES_SCHEMA)
            StagingLog.create(place, schema, max_bytes=LOG_MAX_BYTES).close()
        with StagingLog.open(place, max_bytes=LOG_MAX_BYTES) as log:
            log.trim()
            if log.room_bytes < LOG_LEAST_ROOM_BYTES:
                raise StoreError(
                    f"the staging log {place} is full: {format_bytes(log.used_bytes)} of {format_bytes(LOG_MAX_BYTES)}",
                    code="queue_full",
                    next_move="start with --fresh",
                    path=str(place),
                )

    @property
    def receiver_port(self) -> int:
        return self._ports["receiver"]

    def start_loader(self) -> None:
        self.loader.start()
        self._ports["loader"] = self.loader.wait_ready(self.places.loader_ready)["port"]

    def open_shop(self, **hours: Any) -> None:
        """Let the shop begin to sell; `hours` are its options, such as rate and rows."""
        self._shop_hours = hours
        self.shop.start()

    def sell_out(self) -> None:
        """Watch until the shop has closed and handed over all that it sold."""
        while self.shop.running:
            self.watch()
        if self.shop.exit_code != 0:
            raise self.shop.failed()

    def drain(self) -> None:
        """Watch until the warehouse has all that the log has."""
        behind, since = -1, time.monotonic()
        self.monitor.look()
        while self.monitor.loaded_entries < self.monitor.staged_entries:
            self.watch()
            now_behind = self.monitor.staged_entries - self.monitor.loaded_entries
            if now_behind != behind:
                behind, since = now_behind, time.monotonic()
            if time.monotonic() - since > STALLED_AFTER_S:
                raise InternalError(
                    f"the warehouse is {behind} blocks behind the log and has not moved for {STALLED_AFTER_S:.0f} s",
                    code="stalled",
                    next_move=f"read {self.places.output_of('driver')}",
                )

    def watch(self) -> None:
        """Look, show, and start again what died."""
        time.sleep(LOOK_EVERY_S)
        self.monitor.look()
        self._screen.show(self.monitor.activities.values())
        for child in (self.loader, self.receiver, self.driver):
            if not child.running:
                if child.exit_code == SpecError.exit_code or child.starts > RESTARTS_AT_MOST:
                    raise child.failed()
                self._screen.say(
                    f"the {child.name} ended with exit code {child.exit_code}, starting it again"
                )
                child.kill()  # what it left behind, such as Spark's Java process
                child.start()

    def end(self) -> None:
        """The shop first, the loader last, so that each can hand over what it holds."""
        for child in (self.shop, self.driver, self.receiver, self.loader):
            child.end()
        for ready in (self.places.loader_ready, self.places.receiver_ready, self.places.driver_ready):
            ready.unlink(missing_ok=True)

    def _child(self, name: str, module: str, arguments: Any) -> Child:
        return Child(name, module, arguments, self.places.output_of(name))

    def _loader_arguments(self) -> list[str]:
        places = self.places
        return [
            *("--state", str(places.loader_state), "--warehouse", str(places.warehouse)),
            *("--token-file", str(places.loader_token), "--ready-file", str(places.loader_ready)),
            *("--port", str(self._ports["loader"])),  # the same one after a restart: its clients come back
        ]

    def _receiver_arguments(self) -> list[str]:
        places = self.places
        return [
            *("--log", str(places.log), "--max-bytes", str(LOG_MAX_BYTES)),
            *("--ready-file", str(places.receiver_ready), "--port", str(self._ports["receiver"])),
        ]

    def _driver_arguments(self) -> list[str]:
        return ["--data", str(self.places.data), "--memory", self._memory]

    def _shop_arguments(self) -> list[str]:
        places = self.places
        hours = [word for name, value in self._shop_hours.items() for word in (f"--{name}", str(value))]
        return [
            *("--database", str(places.database), "--spool", str(places.spool)),
            *("--receiver", f"127.0.0.1:{self._ports['receiver']}", "--stats", str(places.shop_stats)),
            *("--products", str(PRODUCTS)),
            *hours,
        ]


__all__ = ["Parts"]
