"""The whole path, running: shop, receiver, Spark, loader; started once, then hurt by one test after the other."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemill.demo.check import Verdict, check
from tidemill.demo.parts import Parts
from tidemill.demo.places import Places
from tidemill.demo.products import build_products
from tidemill.demo.run import prepare_folder
from tidemill.demo.screen import Screen

RATE = 1500.0


class Rig:
    """Sells, hurts and judges. Every test of the folder adds rows to the same warehouse."""

    def __init__(self, places: Places, fail_folder: Path) -> None:
        self.places = places
        self.parts = Parts(places, "32 MB", Screen(plain=True, json_output=True))
        self._fail_folder = fail_folder
        self._days = 0

    def tell_to_die(self, point: str) -> None:
        """A worker or the driver kills itself at this point, once."""
        (self._fail_folder / point).touch()

    def is_dead(self, point: str) -> bool:
        return not (self._fail_folder / point).exists()

    def open_shop(self, rows: int) -> None:
        self._days += 1
        self.parts.open_shop(rate=RATE, rows=rows, seed=self._days)

    def sell(self, rows: int = 1500) -> None:
        self.open_shop(rows)
        self.parts.sell_out()

    def sell_while_driver_is_down(self, rows: int = 500) -> None:
        """Sales wait in the log; nobody starts the driver again meanwhile."""
        self.open_shop(rows)
        while self.parts.shop.running:
            time.sleep(0.1)

    def watch_until(self, met: Callable[[], bool]) -> None:
        while not met():
            self.parts.watch()

    def kill(self, pid: int | None) -> None:
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def verdict(self) -> Verdict:
        """Drain, then compare all rows of all tests so far."""
        self.parts.drain()
        self.parts.loader.end()  # it owns the warehouse file; the driver waits for it meanwhile
        found = check(self.places, warm_up_rows=0)
        self.parts.start_loader()
        return found


def assert_nothing_lost_doubled_or_altered(found: Verdict, rows_sold_at_least: int) -> None:
    assert found.rows_in >= rows_sold_at_least
    assert (found.lost, found.doubled, found.altered) == (0, 0, 0)
    assert found.checksum_source == found.checksum_warehouse
    assert found.rows_out + found.rejected + found.unmatched == found.rows_in


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("faults")
    fail_folder = folder / "fail"
    fail_folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEMILL_FAIL_AT", str(fail_folder))
        rig = Rig(prepare_folder(folder / "data", fresh=True), fail_folder)
        try:
            build_products(rig.places.products)
            rig.parts.start()
            yield rig
        finally:
            rig.parts.end()
