"""The cost models by the names of the joins."""

from importlib import import_module

from tidemill.core.errors import unknown_choice
from tidemill.model.prediction import CostModel

MODELLED = (
    "adaptive_mesh",
    "balanced",
    "cache",
    "hybrid",
    "inl",
    "mesh",
    "moij",
    "reduced_mesh",
    "ssij",
    "tide",
    "x_hybrid",
)


def model_of(name: str) -> CostModel:
    """The model of the join of that name."""
    if name not in MODELLED:
        raise unknown_choice("cost model", name, list(MODELLED))
    model: CostModel = import_module(f"tidemill.model.cost.{name}").MODEL
    return model


__all__ = ["MODELLED", "model_of"]
