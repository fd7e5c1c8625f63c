"""The oldest batch of arrivals, looked at once."""

import pyarrow as pa

from tidemill.join.parts.kernels import Bools, Int64s


class Front:
    """The oldest batch of arrivals as compiled calls see it: codes, where one is present, and where its columns lie."""

    def __init__(self, batch: pa.RecordBatch, codes: Int64s, present: Bools, sources: Int64s | None) -> None:
        self.batch, self.codes, self.present = batch, codes, present
        self._sources = sources

    @property
    def has_sources(self) -> bool:
        return self._sources is not None

    def sources(self, begin: int) -> Int64s | None:
        """As `SideBySide.sources`, from a row on."""
        if self._sources is None:
            return None
        sources = self._sources.copy()
        sources[:, 0] += begin * sources[:, 1]
        return sources


__all__ = ["Front"]
