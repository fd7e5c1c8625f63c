"""Master data bigger than memory: rows in pages by key, a sparse index, versions; or a table of a database."""

from tidemill.master.protocol import Master
from tidemill.master.store import MasterData

__all__ = ["Master", "MasterData"]
