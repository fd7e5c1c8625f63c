"""The bearer token: made once, kept in a file that only its owner reads, checked by its hash."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from tidemill.core.errors import SpecError

_LEAST_CHARS = 32


def create_token(path: Path) -> None:
    """Write a new 256-bit token to `path` with mode 0600; a file that is there is not replaced."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise SpecError(
            f"{path} exists", code="token_exists", next_move="use it, or remove it first", path=str(path)
        ) from error
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")


def read_token(path: Path) -> str:
    """The token of a file that other users of the host cannot read."""
    try:
        open_to_others = path.stat().st_mode & 0o007
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"cannot read the token file {path}: {type(error).__name__}",
            code="token_unreadable",
            next_move="create one with create_token",
            path=str(path),
        ) from error
    if open_to_others:
        raise SpecError(
            f"every user of this host may read the token file {path}",
            code="token_exposed",
            next_move=f"chmod 600 {path}",
            path=str(path),
        )
    if len(token) < _LEAST_CHARS or not token.isascii():
        raise SpecError(
            f"the token in {path} has fewer than {_LEAST_CHARS} plain characters",
            code="token_weak",
            next_move="create one with create_token",
            path=str(path),
        )
    return token


class TokenCheck:
    """Answers whether a header carries the token; keeps its SHA-256 only."""

    def __init__(self, token: str) -> None:
        self._digest = hashlib.sha256(token.encode()).digest()

    def allows(self, authorization: bytes) -> bool:
        scheme, _, given = authorization.partition(b" ")
        same = hmac.compare_digest(hashlib.sha256(given.strip()).digest(), self._digest)
        return same and scheme.lower() == b"bearer"


__all__ = ["TokenCheck", "create_token", "read_token"]
