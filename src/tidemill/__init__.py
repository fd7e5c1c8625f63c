"""Tidemill: an active data warehouse on Apache Spark."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.core.errors import TidemillError
    from tidemill.master import MasterData
    from tidemill.spark.enrich import enrich
    from tidemill.spark.explain import explain
    from tidemill.spark.feeds import apply_changes
    from tidemill.spark.late import split_fates
    from tidemill.spark.lookup import Lookup
    from tidemill.spark.parking import Parking, with_parked
    from tidemill.spark.shed import Shed, with_shed
    from tidemill.spark.watch import watch
    from tidemill.spark.watch_alarms import Limits

__version__ = "0.1.0"

_HOMES = {
    "Limits": "tidemill.spark.watch_alarms",
    "Lookup": "tidemill.spark.lookup",
    "MasterData": "tidemill.master",
    "Parking": "tidemill.spark.parking",
    "Shed": "tidemill.spark.shed",
    "TidemillError": "tidemill.core.errors",
    "apply_changes": "tidemill.spark.feeds",
    "enrich": "tidemill.spark.enrich",
    "explain": "tidemill.spark.explain",
    "split_fates": "tidemill.spark.late",
    "watch": "tidemill.spark.watch",
    "with_parked": "tidemill.spark.parking",
    "with_shed": "tidemill.spark.shed",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: a source host has no Spark, and `tidemill --help` must not wait for it.
    if name not in _HOMES:
        raise AttributeError(f"module 'tidemill' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


__all__ = [
    "Limits",
    "Lookup",
    "MasterData",
    "Parking",
    "Shed",
    "TidemillError",
    "__version__",
    "apply_changes",
    "enrich",
    "explain",
    "split_fates",
    "watch",
    "with_parked",
    "with_shed",
]
