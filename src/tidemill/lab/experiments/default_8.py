"""default-8: what a page costs to read, over the size of the disk buffer."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from tidemill.lab.disks import SCAN_OF_2008
from tidemill.lab.experiment import Curve, Experiment, Figure, Finding, Setting
from tidemill.lab.mesh_curves import MB, lab_workload
from tidemill.lab.scan_costs import scan_seconds
from tidemill.lab.virtual_rows import open_store
from tidemill.model.work import DISK_OF_2008

PAGE_BYTES = 16 * 1024
BUFFER_PAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FALLS_BY = 1.5
"""A page in the smallest buffer costs so many times what it costs in the largest, at least."""
NOISE = 0.1
FLAT = 0.25
"""Of the whole fall, what the last two doublings still bring at most."""


def run(setting: Setting) -> Finding:
    setting.progress("building master data", 0.0)
    with_pages = open_store(lab_workload(setting), setting.folder)
    file = _longest_file(with_pages.path)
    with_pages.close()
    setting.progress("reading in order past the page cache", 0.3)
    sizes = [pages * PAGE_BYTES for pages in BUFFER_PAGES]
    real = scan_seconds(file, sizes, seconds_each=1.0 if setting.quick else 5.0)
    by_disk = {
        "this machine": per_page({size: real[size] for size in sizes}),
        "scanning disk of 2008": per_page({size: SCAN_OF_2008.seconds(size) for size in sizes}),
        "a seek each read": per_page({size: DISK_OF_2008.seconds(size) for size in sizes}),
    }
    judged = ("this machine", "scanning disk of 2008")
    lacking = [disk for disk in judged if not falls_and_flattens(by_disk[disk])]
    return Finding(
        holds=not lacking,
        measured="; ".join(f"{disk}: {_describe(by_disk[disk])}" for disk in by_disk),
        reason=f"not so on {' and '.join(lacking)}"
        if lacking
        else "with a seek each read the cost still falls at 4 MB" * (not falls_and_flattens(by_disk["a seek each read"])),
        values={f"{disk.replace(' ', '_')}_fall": cost[0] / cost[-1] for disk, cost in by_disk.items()},
        figures=[
            Figure(
                title="Reading a page of 16 KB", x_label="disk buffer, MB", y_label="microseconds a page",
                log_x=True, log_y=True,
                curves=[
                    Curve(
                        label=disk, x=[size / MB for size in sizes], y=[1e6 * cost for cost in costs],
                        kind="measured" if disk == "this machine" else "predicted",
                    )
                    for disk, costs in by_disk.items()
                ],
            )
        ],
    )  # fmt: skip


def per_page(read_seconds: Mapping[int, float]) -> list[float]:
    return [seconds * PAGE_BYTES / size for size, seconds in read_seconds.items()]


def falls_and_flattens(costs: list[float]) -> bool:
    """Whether it falls with every doubling, noise forgiven, by much in all and by little at the end.

    >>> falls_and_flattens([10, 6, 4, 3, 2.6, 2.4]), falls_and_flattens([10, 9, 8, 6, 4, 1])
    (True, False)
    """
    falls = all(after <= before * (1 + NOISE) for before, after in pairwise(costs))
    deep = costs[0] >= FALLS_BY * costs[-1]
    return falls and deep and costs[-3] - costs[-1] <= FLAT * (costs[0] - costs[-1])


def _describe(costs: list[float]) -> str:
    middle = len(costs) // 2
    return f"{1e6 * costs[0]:,.1f} µs a page alone, {1e6 * costs[middle]:,.1f} in {BUFFER_PAGES[middle]}, {1e6 * costs[-1]:,.1f} in {BUFFER_PAGES[-1]}"


def _longest_file(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


EXPERIMENTS = [
    Experiment(
        id="default-8",
        claim="The cost of reading a page falls as the disk buffer grows, then flattens",
        source="Naeem et al., BIRTE 2009, Fig. 8",
        sizes="reads of 1 to 256 pages of 16 KB in order, direct I/O on this machine; the disks of 2008 by arithmetic",
        run=run,
    )
]
