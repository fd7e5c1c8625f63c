"""Reports like those of weather stations and ships, joined on longitude: both weather sets of the papers.

The papers' own are the synoptic cloud reports NDP-026B, which a lab cannot count on to be at hand. Ours have what matters
to a join: few values with many rows each, the same stations on both sides, and stations that crowd on few meridians.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.lab.data.data_set import filler, filler_bytes, schema_of, spans
from tidemill.model.workload import Workload

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

DOMAIN = 36_000
"""Longitudes in hundredths of a degree."""
_STATIONS = 7_000
_CONTINENTS = (
    (0.30, 15, 15),
    (0.20, 265, 18),
    (0.25, 110, 20),
    (0.10, 75, 8),
    (0.10, 300, 8),
    (0.05, 140, 8),
)
"""Share of the stations, meridian around which they lie and how far they scatter, in degrees."""
_SHIPS_SHARE = 0.15
"""Reports from anywhere."""
_REPORTS_A_DAY = (1, 2, 4, 8)
BATCH_ROWS = 10_000


@dataclass(frozen=True, kw_only=True)
class WeatherData:
    """Reports of some months as master data, those of another month as stream.

    Rows shrink with the scale, longitudes do not: a longitude then takes the same share of the master data, in fewer rows.

    >>> WeatherData.of_meshjoin(scale=1000).workload.master_rows
    10000
    """

    master_rows: int
    row_bytes: int
    """Of either side."""
    distinct: bool = False
    """Whether one master row a longitude is kept, as for algorithms that know unique keys alone."""
    page_bytes: int = 16 * 1024
    seed: int = 7

    @classmethod
    def of_meshjoin(cls, *, scale: int, seed: int = 7) -> "WeatherData":
        """10 M rows of 32 bytes on either side (TKDE 2008, §6.1), divided by `scale`."""
        return cls(master_rows=10_000_000 // scale, row_bytes=32, seed=seed)

    @classmethod
    def of_moij(
        cls, *, scale: int, distinct: bool = False, seed: int = 7, page_bytes: int = 16 * 1024
    ) -> "WeatherData":
        """20 M master rows of 128 bytes (IEEE Access 2020, §V-E), divided by `scale`."""
        return cls(
            master_rows=20_000_000 // scale,
            row_bytes=128,
            distinct=distinct,
            seed=seed,
            page_bytes=page_bytes,
        )

    @property
    def name(self) -> str:
        once = "-distinct" if self.distinct else ""
        return f"weather-{self.master_rows}-{self.row_bytes}b-pages-{self.page_bytes}{once}-seed-{self.seed}"

    @property
    def key(self) -> str:
        return "longitude"

    @cached_property
    def workload(self) -> Workload:
        rows = np.bincount(self._longitudes, minlength=DOMAIN + 1)
        found = float(self._shares[rows > 0].sum())
        return Workload(
            master_rows=len(self._longitudes),
            master_row_bytes=self.row_bytes,
            stream_row_bytes=self.row_bytes,
            zipf_exponent=_fitted_exponent(self._shares),
            matched_share=found,
            rows_per_key=float(np.dot(self._shares, rows)) / found,
            page_bytes=self.page_bytes,
        )

    @property
    def master_order(self) -> None:
        return None

    @property
    def stream_schema(self) -> pa.Schema:
        return self._schema("seen")

    def master(self, folder: Path) -> pa.RecordBatchReader:  # noqa: ARG002
        random = np.random.default_rng([self.seed, 3])
        schema = self._schema("report")
        width = self._width

        def batches() -> Iterator[pa.RecordBatch]:
            for first, rows in spans(len(self._longitudes)):
                columns = [pa.array(self._longitudes[first : first + rows]), filler(rows, width, random)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

        return pa.RecordBatchReader.from_batches(schema, batches())

    def stream(self, folder: Path) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        random = np.random.default_rng([self.seed, 4])
        while True:
            columns = [pa.array(self._draw(BATCH_ROWS, random)), filler(BATCH_ROWS, self._width, random)]
            yield pa.RecordBatch.from_arrays(columns, schema=self.stream_schema)

    @property
    def _width(self) -> int:
        return filler_bytes(self.row_bytes)

    def _schema(self, facts: str) -> pa.Schema:
        return schema_of(longitude=pa.int64(), **{facts: pa.binary(self._width)})

    @cached_property
    def _shares(self) -> Floats:
        """Of the reports, for each longitude."""
        random = np.random.default_rng([self.seed, 1])
        shares = np.full(DOMAIN + 1, _SHIPS_SHARE / (DOMAIN + 1))
        parts = np.array([part for part, _, _ in _CONTINENTS])
        continent = random.choice(len(parts), _STATIONS, p=parts / parts.sum())
        middle, width = (np.array([one[n] for one in _CONTINENTS])[continent] for n in (1, 2))
        at = np.round(100 * (middle + width * random.standard_normal(_STATIONS))).astype(np.int64) % DOMAIN
        reports = random.choice(_REPORTS_A_DAY, _STATIONS)
        np.add.at(shares, at, (1 - _SHIPS_SHARE) * reports / reports.sum())
        return shares

    @cached_property
    def _longitudes(self) -> Int64s:
        drawn = self._draw(self.master_rows, np.random.default_rng([self.seed, 2]))
        return np.unique(drawn) if self.distinct else drawn

    def _draw(self, rows: int, random: np.random.Generator) -> Int64s:
        return random.choice(DOMAIN + 1, rows, p=self._shares).astype(np.int64)


def _fitted_exponent(shares: Floats) -> float:
    """The Zipf exponent under which the most popular hundredth and tenth of the keys get what they get here."""
    by_rank = np.cumsum(np.sort(shares)[::-1])
    tops = [len(shares) // 100, len(shares) // 10]
    grid = np.linspace(0, 1.5, 151)

    def miss(exponent: float) -> float:
        ideal = np.cumsum(np.arange(1, len(shares) + 1, dtype=np.float64) ** -exponent)
        return float(sum((by_rank[top - 1] - ideal[top - 1] / ideal[-1]) ** 2 for top in tops))

    return float(min(grid, key=miss))


__all__ = ["DOMAIN", "WeatherData"]
