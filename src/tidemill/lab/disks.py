"""Disks on which experiments are judged, beside the real one."""

from dataclasses import replace

from tidemill.model.work import COSTS_OF_2008, Costs, ReadCurve

SCAN_OF_2008 = ReadCurve.of_disk(seek_seconds=0.0005, bytes_per_s=72e6)
"""Reads that go on where the last one ended: half a millisecond for the command, and the drive has read ahead."""

SCANNING_COSTS_OF_2008: Costs = replace(COSTS_OF_2008, read=SCAN_OF_2008)
"""For a join that alone uses its disk and reads it in order.

Half a millisecond is an assumption, no paper prints it. It was chosen knowing that the best buffers of BIRTE 2009 follow from
about 0.05 MB worth of reading beside each read, so what default-6, -7 and -9 find on it is no independent proof. Of three
rates that the MESHJOIN paper quotes for 0.5, 1 and 10 % of memory (3,500, 6,000, 26,000 rows/s) the model with it meets one
(1,810, 6,002, 74,016); with a seek each read it meets none (507, 2,367, 56,518).
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
