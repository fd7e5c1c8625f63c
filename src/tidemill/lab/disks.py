"""Disks on which experiments are judged, beside the real one."""

from dataclasses import replace

from tidemill.model.work import COSTS_OF_2008, Costs, ReadCurve

SCAN_OF_2008 = ReadCurve.of_disk(seek_seconds=0.0005, bytes_per_s=72e6)
"""Reads that go on where the last one ended: half a millisecond for the command, and the drive has read ahead."""

SCANNING_COSTS_OF_2008: Costs = replace(COSTS_OF_2008, read=SCAN_OF_2008)
"""For a join that alone uses its disk and reads it in order.

The MESHJOIN paper reports a little more than 6,000 rows/s with 1 % of memory (Fig. 10b). With half a millisecond a read the
model says 6,002 for our join, with a seek of 12.5 ms a read 2,367: their reads did not seek.
"""


def shrunk(costs: Costs, scale: float) -> Costs:
    """Costs under which a join of master data, memory and buffer divided by `scale` has the rates of the whole.

    A buffer that is smaller by some factor takes as much less time to read only if what a read costs beside its bytes,
    and a step beside its rows, is smaller too.

    >>> round(shrunk(SCANNING_COSTS_OF_2008, 10).read.seconds(0), 6)
    5e-05
    """
    beside = costs.read.seconds(0)
    per_byte = (costs.read.seconds(1e6) - beside) / 1e6
    disk = ReadCurve.of_disk(seek_seconds=beside / scale, bytes_per_s=1 / per_byte)
    return replace(costs, read=disk, step_seconds=costs.step_seconds / scale)


__all__ = ["SCANNING_COSTS_OF_2008", "SCAN_OF_2008", "shrunk"]
