"""What no join can beat: the larger of assembling the output from memory and reading the fewest bytes that anyone read."""

import statistics
from collections.abc import Sequence
from typing import Any

from tidemill.lab.device import DeviceCurve

ONE_READ_AFTER_THE_OTHER = ("hybrid", "moij", "ssij", "x_hybrid")


def add_bounds(
    results: Sequence[dict[str, Any]], assemblies: Sequence[dict[str, Any]], device: DeviceCurve
) -> None:
    """Give all results of one skew and memory share the bound, and each one its own.

    The bound reads the fewest bytes a row of any contender that gave right rows, at the best speed of the disk. A
    contender's own bound reads its own bytes in reads of its own mean size; one after the other if the algorithm
    chooses each read by what the one before has left. Without a speed of assembling there is neither.

    Args:
        results: Of contenders, which get the fields.
        assemblies: What the cells of assembling found, one a run; the one with the median rate stands.
        device: Speed of the disk.
    """
    facts = _assembly_facts(assemblies)
    for result in results:
        result |= {"bound_rows_per_s": None, "own_bound_rows_per_s": None, **facts}
    if facts["assembly_rows_per_s"] is None:
        return
    assemble_seconds = 1 / facts["assembly_rows_per_s"]
    measured = [r for r in results if r["rows_per_s"] is not None]
    fewest = min((r["bytes_read"] / r["stream_rows"] for r in measured if r["same_rows"]), default=0.0)
    bound = 1 / max(assemble_seconds, fewest / device.best_bytes_per_s)
    for result in results:
        result["bound_rows_per_s"] = bound
    for result in measured:
        mean_read = result["bytes_read"] / max(1, result["reads"])
        disk_seconds = device.seconds(
            result["bytes_read"],
            read_bytes=mean_read,
            alone=result.get("contender") in ONE_READ_AFTER_THE_OTHER,
        )
        own_seconds = max(assemble_seconds, disk_seconds / result["stream_rows"])
        result["own_bound_rows_per_s"] = 1 / own_seconds


def _assembly_facts(assemblies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the run whose rate is the median (the lower of two), with all rates; no facts if a run failed or was wrong."""
    rates: list[Any] = [None if a["same_rows"] is False else a["rows_per_s"] for a in assemblies]
    stands = {} if None in rates else assemblies[rates.index(statistics.median_low(rates))]
    return {
        "assembly_rows_per_s": stands.get("rows_per_s"),
        "assembly_rows_per_s_of_runs": rates,
        "assembly_way": stands.get("way"),
        "assembly_piece_rows": stands.get("piece_rows"),
        "cached_assembly_rows_per_s": stands.get("cached_rows_per_s"),
    }


__all__ = ["add_bounds"]
