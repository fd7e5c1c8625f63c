"""Who builds from a source: this folder itself, or a room above it that knows such sources."""

import importlib
from collections.abc import Callable
from typing import Any, Protocol

from tidemill.master.build import build_version

_HOMES = {"pyspark": "tidemill.spark.master_build"}
"""By the package of the source's class. A name and no import: it is loaded once such a source is given, hence only
where its package is installed, and a store without Spark stays one."""


class SparkRows(Protocol):
    """As much of a Spark DataFrame as may be known here."""

    @property
    def columns(self) -> list[str]: ...
    def repartition(self, *arguments: Any) -> Any: ...


def builder_of(source: object) -> Callable[..., int]:
    """The `build_version` for this kind of source.

    >>> builder_of("products.parquet") is build_version
    True
    """
    packages = {kind.__module__.partition(".")[0] for kind in type(source).__mro__}
    for package in packages & _HOMES.keys():
        builder: Callable[..., int] = importlib.import_module(_HOMES[package]).build_version
        return builder
    return build_version


__all__ = ["SparkRows", "builder_of"]
