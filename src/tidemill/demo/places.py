"""Where the demo keeps what: one folder, every file in it by name."""

from dataclasses import dataclass
from pathlib import Path

PIPELINE = "shop"


@dataclass(frozen=True)
class Places:
    data: Path

    @property
    def database(self) -> Path:
        """The shop's own SQLite database."""
        return self.data / "shop.sqlite"

    @property
    def spool(self) -> Path:
        return self.data / "spool"

    @property
    def log(self) -> Path:
        """The staging log."""
        return self.data / "log"

    @property
    def products(self) -> Path:
        """The master store."""
        return self.data / "products"

    @property
    def hot_rows(self) -> Path:
        return self.data / "hot"

    @property
    def checkpoint(self) -> Path:
        return self.data / "checkpoint"

    @property
    def scratch(self) -> Path:
        return self.data / "scratch"

    @property
    def warehouse(self) -> Path:
        return self.data / "warehouse.duckdb"

    @property
    def loader_state(self) -> Path:
        return self.data / "loader"

    @property
    def loader_ready(self) -> Path:
        return self.data / "loader.json"

    @property
    def loader_token(self) -> Path:
        return self.data / "loader.token"

    @property
    def receiver_ready(self) -> Path:
        return self.data / "receiver.json"

    @property
    def driver_ready(self) -> Path:
        return self.data / "driver.json"

    @property
    def batches(self) -> Path:
        """One line of JSON a delivered batch."""
        return self.data / "batches.jsonl"

    @property
    def shop_stats(self) -> Path:
        return self.data / "shop.json"

    @property
    def made_here(self) -> Path:
        """Marks a folder that a demo made, and may therefore empty."""
        return self.data / ".tidemill-demo"

    def output_of(self, part: str) -> Path:
        """What a part of the demo printed."""
        return self.data / f"{part}.out"


__all__ = ["PIPELINE", "Places"]
