"""Which errors of the system may be gone when the same is tried again."""

import errno

NEXT_MOVE = "run it again, for this may have passed; if it stays, see to the disk or the network behind it"
_PASSING = frozenset(
    {
        errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY,
        errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOLCK, errno.ENOSPC, errno.EDQUOT,
        errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET,
        errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN, errno.EREMOTEIO,
    }
)  # fmt: skip
"""A disk or a network that answers badly for the moment, or something of which there is too little now. A file that is
not there, that may not be read, or whose content is wrong, will be so again."""


def may_pass(error: BaseException) -> bool:
    """Whether the error is one of the system, of a kind that may have passed a moment later.

    >>> may_pass(OSError(errno.EIO, "Input/output error")), may_pass(FileNotFoundError(errno.ENOENT, "No such file"))
    (True, False)
    """
    return isinstance(error, OSError) and error.errno in _PASSING


__all__ = ["NEXT_MOVE", "may_pass"]
