"""Where the rows of keys lie among master rows that were read."""

import numpy as np

from tidemill.join.parts.kernels import Int64s, find_in_pages


class KeyedRows:
    """Finds the rows of keys in a batch in which rows of one key are neighbours.

    Pages in key order give keys in order. Pages in another order, such as popularity, do not: then
    an order by key is made beside them.
    """

    def __init__(self, stored_keys: Int64s) -> None:
        is_sorted = bool((stored_keys[1:] >= stored_keys[:-1]).all())
        self._order = None if is_sorted else np.argsort(stored_keys, kind="stable")
        self._sorted_keys = stored_keys if self._order is None else stored_keys[self._order]

    @property
    def bytes_held(self) -> int:
        return 0 if self._order is None else self._order.nbytes + self._sorted_keys.nbytes

    def ranges_of(self, keys: Int64s) -> tuple[Int64s, Int64s]:
        """Where the rows of each key start, and how many there are."""
        start = np.searchsorted(self._sorted_keys, keys, side="left")
        matches = np.searchsorted(self._sorted_keys, keys, side="right") - start
        if self._order is not None and len(self._order):
            start = self._order[np.minimum(start, len(self._order) - 1)]
        return start, matches


def ranges_in_pages(stored_keys: Int64s, begin: Int64s, end: Int64s, keys: Int64s) -> tuple[Int64s, Int64s]:
    """For each key, where its rows start between its own `begin` and `end`, and how many there are.

    >>> stored = np.array([6, 7, 7, 6, 7, 7])
    >>> ranges_in_pages(stored, np.array([0, 3]), np.array([3, 6]), np.array([7, 9]))
    (array([1, 6]), array([2, 0]))
    """
    start, matches = np.empty_like(keys), np.empty_like(keys)
    find_in_pages(stored_keys, begin, end, keys, start, matches)
    return start, matches


__all__ = ["KeyedRows", "ranges_in_pages"]
