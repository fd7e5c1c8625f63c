"""A memory budget as a promise: parts are reserved by name before they grow."""

from tidemill.core.errors import BudgetError
from tidemill.core.units import format_bytes


class MemoryBudget:
    """Named reservations that together never exceed `total_bytes`.

    >>> budget = MemoryBudget(1000)
    >>> budget.reserve("hot_rows", 600)
    >>> budget.left_bytes
    400
    >>> budget.reserve("pending", 500)
    Traceback (most recent call last):
    tidemill.core.errors.BudgetError: pending asked for 500 B, 400 B of 1 kB are left (hot_rows 600 B). Next: give at least 1.1 kB
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._held: dict[str, int] = {}

    @property
    def held_bytes(self) -> int:
        return sum(self._held.values())

    @property
    def left_bytes(self) -> int:
        return self.total_bytes - self.held_bytes

    def holdings(self) -> dict[str, int]:
        """Bytes held by each name, for reports."""
        return dict(self._held)

    def reserve(self, name: str, size_bytes: int) -> None:
        """Set what `name` holds to `size_bytes`, or refuse without changing anything."""
        others = self.held_bytes - self._held.get(name, 0)
        if size_bytes < 0 or others + size_bytes > self.total_bytes:
            raise BudgetError(
                f"{name} asked for {format_bytes(size_bytes)}, {format_bytes(self.total_bytes - others)} of "
                f"{format_bytes(self.total_bytes)} are left ({self._describe(without=name)})",
                code="over_budget",
                next_move=f"give at least {format_bytes(others + size_bytes)}",
                who=name,
                asked_bytes=size_bytes,
                left_bytes=self.total_bytes - others,
                least_bytes=others + size_bytes,
            )
        self._held[name] = size_bytes

    def try_reserve(self, name: str, size_bytes: int) -> bool:
        """Like `reserve`, but answers False where that refuses."""
        if self.held_bytes - self._held.get(name, 0) + size_bytes > self.total_bytes:
            return False
        self.reserve(name, size_bytes)
        return True

    def release(self, name: str) -> None:
        self._held.pop(name, None)

    def _describe(self, without: str) -> str:
        others = [f"{n} {format_bytes(b)}" for n, b in self._held.items() if n != without]
        return ", ".join(others) or "nothing held"


__all__ = ["MemoryBudget"]
