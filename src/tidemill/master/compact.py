"""A version in one file again, its pages full and in order: what a sweep reads fastest."""

from typing import TYPE_CHECKING

import numpy as np

from tidemill.master.apply import refuse_stale
from tidemill.master.build import Progress
from tidemill.master.changed_codes import write_changed
from tidemill.master.layout import PAGES_FILE
from tidemill.master.new_version import new_version, packed_facts, write_derived
from tidemill.master.packing import Packing
from tidemill.master.page_writer import PageWriter
from tidemill.master.rows import RowLayout

if TYPE_CHECKING:
    from tidemill.master.store import MasterData

_PAGES_AT_A_TIME = 256
MOST_FILES = 64
"""More than so many are put together: every handle on a version has each of its files open."""
MOST_GARBAGE_SHARE = 0.3
"""A store that is compacted at this share writes each changed byte some three times over in the long run."""


def compact_version(master: "MasterData", progress: Progress | None, packing: Packing | None = None) -> int:
    """The number of a version with the same rows in one new file, current from now on.

    Args:
        master: The current version.
        progress: Called with pages done and pages in all.
        packing: Of the new version; None for that of the old one, whose rows then keep their bytes.
    """
    with new_version(master.path) as version:
        refuse_stale(master)
        told = master.manifest
        layout = master.layout
        if packing is not None:
            layout = RowLayout.of(master.schema, first=master.key, packing=packing)
        writer = PageWriter(version.folder / PAGES_FILE, layout, told.page_bytes)
        with writer:
            for first in range(0, master.pages, _PAGES_AT_A_TIME):
                rows = master.read_rows(first, min(_PAGES_AT_A_TIME, master.pages - first))
                if packing is None:
                    writer.add_rows(rows.buffer, rows.at, rows.at + layout.sizes(rows.buffer, rows.at))
                else:
                    writer.add(master.layout.decode(rows.buffer, rows.at))
                if progress is not None:
                    progress(min(first + _PAGES_AT_A_TIME, master.pages), master.pages)
        files = [writer.finished(version.pages_name)]
        most_rows = writer.most_rows_of_a_page
        none = np.empty(0, dtype=np.int64)
        write_changed(version.folder, version.number, made_from=master.version, codes=none)
        packed = packed_facts(packing or master.packing, writer, version.folder)
        write_derived(version, told, writer.index(), files, most_rows_of_a_page=most_rows, **packed)
    return version.number


def is_worth_it(master: "MasterData") -> bool:
    """Whether the files of a version are too many, or hold too much that it does not use."""
    return len(master.manifest.files) > MOST_FILES or master.garbage_share > MOST_GARBAGE_SHARE


__all__ = ["compact_version", "is_worth_it"]
