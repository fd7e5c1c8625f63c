"""Master data bigger than memory: Arrow pages sorted by key, a sparse index, versions."""

from tidemill.master.store import MasterData

__all__ = ["MasterData"]
