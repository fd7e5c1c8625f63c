"""The sizes that the papers worked with, in one table: defaults until a tuner or the user says otherwise."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperSizes:
    """What a paper states about the memory of its join; None where it says nothing.

    >>> PAPER_SIZES["mesh"].disk_buffer_bytes
    930000
    """

    source: str
    disk_buffer_bytes: int | None = None
    hash_overhead_factor: float | None = None
    queue_node_bytes: int | None = None
    stream_buffer_bytes: int | None = None
    eviction_every_rounds: int | None = None
    stream_row_bytes: int = 20
    master_row_bytes: int = 120


_HYBRID = PaperSizes(
    "HYBRIDJOIN and X-HYBRIDJOIN: evaluation set-up",
    disk_buffer_bytes=930_000,
    hash_overhead_factor=4.8,
    queue_node_bytes=12,
    stream_buffer_bytes=50_000,
)
_MOIJ = PaperSizes(
    "Naeem et al., Big Data Velocity Management, IEEE Access 2020",
    disk_buffer_bytes=100_000,
    queue_node_bytes=4,
    eviction_every_rounds=10,
)
_MESH = PaperSizes(
    "Polyzotis et al., Meshing Streaming Updates with Persistent Data, TKDE 2008",
    disk_buffer_bytes=930_000,
    hash_overhead_factor=4.8,
    queue_node_bytes=4,
)

PAPER_SIZES: dict[str, PaperSizes] = {
    "mesh": _MESH,
    "adaptive_mesh": _MESH,
    "reduced_mesh": _MESH,
    "balanced": _MESH,
    "hybrid": _HYBRID,
    "x_hybrid": _HYBRID,
    "cache": _MOIJ,
    "ssij": _MOIJ,
    "moij": _MOIJ,
}

__all__ = ["PAPER_SIZES", "PaperSizes"]
