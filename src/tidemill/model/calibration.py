"""Costs of one machine and one store, as they were measured, in a file that says when."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from tidemill.core.errors import SpecError, StoreError
from tidemill.model.work import Costs, ReadCurve

FORMAT = 2
FILE_NAME = "calibration.json"
"""In the folder of a store, where `tidemill calibrate` puts it and `tm.enrich` looks for it."""

Family = Literal["scan", "lookup", "rows"]
"""How a join reads: one run of pages a request, many places a request, or rows that stay rows with reads under way."""

_FAMILIES: dict[str, Family] = {
    "inl": "lookup",
    "cache": "lookup",
    "ssij": "lookup",
    "moij": "rows",
    "tide": "rows",
}


@dataclass(frozen=True, kw_only=True)
class JoinOverhead:
    """What a join costs beside reads and the parts of a row, mostly Python and Arrow: found from short runs of it."""

    stream_row_seconds: float
    """Of a row that comes, with its part of the steps that only probe."""
    step_seconds: float
    """Of a step that reads."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What operations cost.

    Joins differ in what they do for an operation: those of the `scan` and `lookup` families make columns of all that they
    read and gather from these; those of `rows` copy rows and make columns of what leaves.
    """

    measured_at: str
    """As in ISO 8601."""
    store: str
    """Identity of the master data."""
    master_row_bytes: int
    page_bytes: int
    by_family: Mapping[Family, Costs]
    device_bytes_per_s: Mapping[int, Mapping[int, float]]
    """By reads in flight and bytes of a read, past the page cache."""
    by_join: Mapping[str, JoinOverhead] = field(default_factory=dict)
    """Of joins by name; those of the family where one was not run."""

    @property
    def costs(self) -> Costs:
        """Those of the default join."""
        return self.by_family["rows"]

    def costs_of(self, algorithm: str) -> Costs:
        """Those of a join by its name."""
        costs = self.by_family[_FAMILIES.get(algorithm, "scan")]
        overhead = self.by_join.get(algorithm)
        return replace(costs, **vars(overhead)) if overhead else costs

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str, *, where: str = "the text") -> "Calibration":
        """What `to_json` gave; a `StoreError` says what is wrong with anything else."""
        try:
            told: dict[str, Any] = json.loads(text)
            found = told.pop("format")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _no_calibration(where, "is no calibration") from error
        if found != FORMAT:
            raise _no_calibration(where, f"has format {found}, this version reads {FORMAT}")
        try:
            told["by_family"] = {name: _costs(told["by_family"][name]) for name in get_args(Family)}
            told["device_bytes_per_s"] = {
                int(in_flight): {int(size): float(speed) for size, speed in speeds.items()}
                for in_flight, speeds in told["device_bytes_per_s"].items()
            }
            told["by_join"] = {name: JoinOverhead(**one) for name, one in told["by_join"].items()}
            return cls(**told)
        except (KeyError, TypeError, ValueError) as error:
            raise _no_calibration(where, f"lacks or misplaces {error}") from error

    @classmethod
    def read(cls, path: Path) -> "Calibration":
        try:
            text = path.read_text()
        except OSError as error:
            raise SpecError(
                f"{path} cannot be read: {error.strerror}",
                code="no_calibration",
                next_move="run `tidemill calibrate`, or name the file that it wrote",
            ) from error
        return cls.from_json(text, where=str(path))


def _costs(told: dict[str, Any]) -> Costs:
    curves = {
        name: ReadCurve(sizes=tuple(told[name]["sizes"]), read_seconds=tuple(told[name]["read_seconds"]))
        for name in ("read", "probe")
    }
    return Costs(**{**told, **curves})


def _no_calibration(where: str, what: str) -> StoreError:
    return StoreError(
        f"{where} {what}",
        code="bad_calibration",
        next_move="run `tidemill calibrate` again",
        where=where,
    )


__all__ = ["FILE_NAME", "FORMAT", "Calibration", "Family", "JoinOverhead"]
