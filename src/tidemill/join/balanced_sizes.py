"""How the balanced join splits its memory budget."""

from dataclasses import dataclass

from tidemill.join.mesh_sizes import MeshNeeds, MeshSizes

_LEAST_HOT_BYTES = 1024
_HOT_SHARE = 1 / 4
_ARRIVALS_SHARE = 1 / 20  # most rows hit: several packets' worth is probed for one that waits


@dataclass(frozen=True)
class BalancedSizes(MeshSizes):
    """The sizes of a mesh join, and of the hot rows.

    >>> sizes = BalancedSizes.with_hot_rows(32_000_000, 20, 120, 400_000, 7000)
    >>> sizes.total_bytes, sizes.queue_packets, sizes.most_generation_bytes // 160
    (32000000, 125, 19443)
    """

    hot_rows_bytes: int
    """Two generations (during a switch both live) and keys on their way in, twice."""

    @property
    def candidate_bytes(self) -> int:
        return self.hot_rows_bytes // 10

    @property
    def most_generation_bytes(self) -> int:
        return (self.hot_rows_bytes - 2 * self.candidate_bytes) // 2

    @classmethod
    def with_hot_rows(
        cls,
        total_bytes: int,
        stream_row_bytes: int,
        master_row_bytes: int,
        index_bytes: int,
        master_pages: int,
        longest_page_bytes: int = 16 * 1024,
        *,
        hot_share: float = _HOT_SHARE,
        master_pages_per_step: int | None = None,
    ) -> "BalancedSizes":
        """Sizes that use the budget; a `BudgetError` names the least that works.

        Hot rows get `hot_share` of what a mesh join does not need at least, a quarter unless given, arrivals a
        twentieth more than there, the mesh join the rest.
        """
        rows = (stream_row_bytes, master_row_bytes, index_bytes)
        needs = MeshNeeds.of(*rows, master_pages, longest_page_bytes, None)
        needs.refuse_less("a balanced join", total_bytes, others_bytes=_LEAST_HOT_BYTES)
        spare = total_bytes - needs.least_bytes - _LEAST_HOT_BYTES
        hot = _LEAST_HOT_BYTES + int(spare * hot_share)
        more_arrivals = int(spare * _ARRIVALS_SHARE)
        mesh = MeshSizes.from_budget(
            total_bytes - hot - more_arrivals,
            *rows,
            master_pages=master_pages,
            longest_page_bytes=longest_page_bytes,
            master_pages_per_step=master_pages_per_step,
        )
        sized = {**vars(mesh), "arrivals_bytes": mesh.arrivals_bytes + more_arrivals}
        return cls(hot_rows_bytes=hot, **sized)


__all__ = ["BalancedSizes"]
