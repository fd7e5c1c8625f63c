"""The pages files of one version, open: bytes from a place in them, or an error that names file and page."""

import errno
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import StoreError
from tidemill.core.passing import NEXT_MOVE, may_pass
from tidemill.master.layout import PageFile


class PageFiles:
    """Handles on all files; they stay readable when a later clean-up removes their names.

    Args:
        store: Folder to which the names of the files are relative.
        files: As the manifest lists them; one of another size is a `StoreError`.
        direct: Keep out the kernel's page cache.
    """

    def __init__(self, store: Path, files: Sequence[PageFile], *, direct: bool) -> None:
        self.paths = [store / file.name for file in files]
        self.salts: npt.NDArray[np.uint64] = np.array([file.salt for file in files], dtype=np.uint64)
        self._handles: list[int] = []
        # On this object itself: a read under way keeps it alive, so no handle is closed under that read.
        self._close = weakref.finalize(self, _close_all, self._handles)
        for path, file in zip(self.paths, files, strict=True):
            self._handles.append(_opened(path, direct=direct))
            _refuse_other_size(path, os.fstat(self._handles[-1]).st_size, file.bytes)

    @property
    def handles(self) -> npt.NDArray[np.int64]:
        """By number of the file; -1 when they were closed."""
        return np.array(self._handles or [-1] * len(self.paths), dtype=np.int64)

    def close(self) -> None:
        self._close()

    def read_into(self, room: memoryview, file: int, offset: int) -> int:
        """Bytes read, as many as there is room for unless the file ends before; an `OSError` when it fails."""
        if not self._handles:
            raise OSError(errno.EBADF, "the store was closed")
        done = 0
        while done < len(room):
            count = os.preadv(self._handles[file], [room[done:]], offset + done)
            if count == 0:
                break
            done += count
        return done


def _close_all(handles: list[int]) -> None:
    while handles:
        os.close(handles.pop())


def _opened(file: Path, *, direct: bool) -> int:
    try:
        return os.open(file, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    except OSError as error:
        if direct and error.errno == errno.EINVAL:
            raise StoreError(
                f"the file system of {file} has no direct I/O",
                code="no_direct_io",
                next_move="open the master data with direct=False, or keep it on a local disk",
                file=str(file),
            ) from error
        raise StoreError(
            f"cannot open {file}: {error.strerror}",
            code="unreadable",
            next_move=NEXT_MOVE if may_pass(error) else "restore the file, or build the master data again",
            retryable=may_pass(error),
            file=str(file),
        ) from error


def _refuse_other_size(file: Path, size_bytes: int, promised_bytes: int) -> None:
    if size_bytes != promised_bytes:
        raise StoreError(
            f"{file} has {size_bytes} bytes, its manifest promises {promised_bytes}",
            code="pages_cut",
            next_move="restore the file, or build the master data again",
            file=str(file),
            size_bytes=size_bytes,
        )


__all__ = ["PageFiles"]
