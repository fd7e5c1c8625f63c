"""What a log remembers of each source: its last block and the digests of its newest ones."""

from collections import deque

from tidemill.core.block import Block

REMEMBERED_DIGESTS = 1024


class SourceMemory:
    """Last block and recent digests by source, fed with each block in log order."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}
        self._recent: dict[str, deque[bytes]] = {}

    def remember(self, block: Block) -> None:
        self._last[block.source] = (block.number, block.last_position)
        self._recent.setdefault(block.source, deque(maxlen=REMEMBERED_DIGESTS)).append(block.digest)

    def learn(self, sources: dict[str, tuple[int, int]]) -> None:
        """Take over what the start of a segment says of blocks before it."""
        self._last.update(sources)

    def last_blocks(self) -> dict[str, tuple[int, int]]:
        return dict(self._last)

    def last_block(self, source: str) -> tuple[int, int] | None:
        return self._last.get(source)

    def recent_digest(self, source: str, number: int) -> bytes | None:
        recent = self._recent.get(source, deque())
        behind = self._last.get(source, (0, 0))[0] - number
        return recent[-1 - behind] if 0 <= behind < len(recent) else None


__all__ = ["REMEMBERED_DIGESTS", "SourceMemory"]
