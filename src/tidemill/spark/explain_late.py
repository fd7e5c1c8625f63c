"""What becomes of rows without a master row in a call of `tm.enrich`: their fates, how long they wait, and what follows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.spark.late import FATE_COLUMN, LAST_FATES, PARKED_AT_COLUMN, REASON_COLUMN, Late
from tidemill.spark.parking import Parking

_SAID = {
    "unmatched": "leave with NULLs",
    "rejected": "are rejected with a reason",
    "defaulted": "leave with a default member",
}


@dataclass(frozen=True, kw_only=True)
class LateExplained:
    """Late rows of one call."""

    late: Late
    fates: list[str]
    """That its rows can have, apart from `shed`."""
    last_fate: str
    """Of rows that wait no longer, or that nothing could wait for."""
    columns_added: list[str]
    path: str | None = None
    """Where rows wait; None where they do not."""
    deadline: str | None = None
    default: dict[str, Any] | None = None
    """Values of the default member."""


def explained_late(late: Late, parking: Parking | None, columns: Sequence[str]) -> LateExplained | None:
    """What becomes of late rows; None where they leave with NULLs.

    Args:
        late: As given to `enrich`.
        parking: As given to `enrich`.
        columns: Of the joined rows.
    """
    if late == "emit":
        return None
    added = [FATE_COLUMN, REASON_COLUMN]
    if parking is None:
        return LateExplained(
            late=late, fates=["joined", "rejected"], last_fate="rejected", columns_added=added
        )
    parking.refuse_unknown_defaults(columns)
    last = LAST_FATES[parking.then]
    return LateExplained(
        late=late,
        fates=["joined", "parked", last],
        last_fate=last,
        columns_added=[*added, PARKED_AT_COLUMN],
        path=str(parking.path),
        deadline=parking.deadline,
        default=parking.default or None,
    )


def lines_of_late(told: LateExplained) -> Iterator[tuple[str, str]]:
    last = _SAID[told.last_fate]
    if told.default:
        last += ": " + ", ".join(f"{name}={value!r}" for name, value in told.default.items())
    if told.path is None:
        yield "without a match", f"rows {last} at once"
    else:
        yield "without a match", f"rows wait in {told.path} until their master row comes"
        yield "deadline", f"{told.deadline} after a row was parked first; then rows {last}"
        yield "NULL in the key", f"nothing to wait for: rows {last} at once"
    yield "fates", f"{', '.join(told.fates)}; tm.watch(spark) counts them by batch"
    yield "columns added", ", ".join(told.columns_added)


__all__ = ["LateExplained", "explained_late", "lines_of_late"]
