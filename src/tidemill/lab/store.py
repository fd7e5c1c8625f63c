"""The benchmark's master store, opened so that the system's page cache does not help."""

from tidemill.lab.join_data import JoinData
from tidemill.master import MasterData

READS_IN_FLIGHT = 16


def open_store(data: JoinData) -> MasterData:
    """A handle that reads past the page cache, several reads at a time."""
    return MasterData.open(data.store, direct=True, reads_in_flight=READS_IN_FLIGHT)


__all__ = ["open_store"]
