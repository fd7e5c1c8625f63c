"""What an experiment states, what it gets, and what it answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Literal

from tidemill.core.errors import unknown_choice
from tidemill.lab import experiments

Progress = Callable[[str, float], None]
"""Takes what is being done, and how much of it is done, 0 … 1."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How large an experiment is and where it keeps data that another run may use again."""

    quick: bool
    """Scaled down to a minute at most on two cores."""
    folder: Path
    seed: int = 7
    progress: Progress = field(default=lambda _doing, _done: None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of a figure."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Literal["measured", "predicted", "paper"] = "measured"


@dataclass(frozen=True, kw_only=True)
class Figure:
    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Whether the claim holds here.

    >>> Finding.not_measured("tpchgen-cli is not installed").holds is None
    True
    """

    holds: bool | None
    """None where it could not be measured here."""
    measured: str
    """The decisive numbers in a sentence."""
    reason: str = ""
    """Why it does not hold or was not measured, or what limits the answer."""
    values: Mapping[str, float] = field(default_factory=dict)
    figures: Sequence[Figure] = ()

    @classmethod
    def not_measured(cls, reason: str) -> "Finding":
        """No answer: something that the experiment needs is not on this machine."""
        return cls(holds=None, measured="", reason=reason)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A claim of a paper and how to put it to the test."""

    id: str
    claim: str
    source: str
    """Paper, section or figure."""
    sizes: str
    """What is scaled down, in the quick and in the full form."""
    run: Callable[[Setting], Finding] = field(repr=False)


def all_experiments() -> Iterator[Experiment]:
    """Every experiment there is, by id."""
    modules = [
        import_module(f"{experiments.__name__}.{found.name}") for found in iter_modules(experiments.__path__)
    ]
    found: list[Experiment] = [one for module in modules for one in module.EXPERIMENTS]
    yield from sorted(found, key=lambda one: one.id)


def experiment(wanted: str) -> Experiment:
    """The one with this id."""
    by_id = {one.id: one for one in all_experiments()}
    if wanted not in by_id:
        raise unknown_choice("experiment", wanted, sorted(by_id))
    return by_id[wanted]


__all__ = ["Curve", "Experiment", "Figure", "Finding", "Progress", "Setting", "all_experiments", "experiment"]
