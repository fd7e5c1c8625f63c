"""Which shedding strategy a call gets, and why: Table 2 of the MESHJOIN paper, asked of what `enrich` really joins."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.core.errors import SpecError
from tidemill.join.shedding.catalog import make_strategy, strategy_for
from tidemill.join.shedding.strategy import Goal
from tidemill.spark.lookup import Lookup

_GOALS = {"most": "most results now (MAX-SUBSET)", "sample": "a sample of them (RANDOM-SAMPLE)"}


@dataclass(frozen=True, kw_only=True)
class ShedChoice:
    """A strategy for the rows of one call."""

    strategy: str
    why: str
    needs_counts: bool
    """Whether it ranks rows by the master rows of their key."""
    least_results: int
    """Of a row without a master row: 1 in a left join."""


def chosen_strategy(wish: str, goal: Goal, lookups: Sequence[Lookup]) -> ShedChoice:
    """The strategy for these lookups, or the one that was asked for where it can be had.

    Results of a row can be counted by its key where one master gives all its rows of that key. In all other joins a row
    is as good as any other, as it is where a key has one master row: the many-to-one column of the table.

    Args:
        wish: "auto", or a strategy by name.
        goal: Most results now, or a sample.
        lookups: That rows go through once they are kept.
    """
    first = lookups[0]
    uncounted = _why_uncounted(lookups)
    mean = first.master.manifest.mean_rows_of_a_key
    is_many = uncounted is None and mean > 1
    name = strategy_for(goal, many_to_many=is_many) if wish == "auto" else wish
    needs_counts = make_strategy(name).needs_matches
    if needs_counts and uncounted is not None:
        raise SpecError(
            f"strategy={name!r} ranks rows by the master rows of their key, but {uncounted}",
            code="shed_uncounted",
            next_move='take strategy="auto", "keep" or "sample"',
            strategy=name,
        )
    if wish != "auto":
        why = "asked for"
    elif is_many:
        why = f"many-to-many, {mean:.3g} master rows a key, and {_GOALS[goal]} is wanted"
    else:
        why = f"many-to-one, since {uncounted or 'a key has one master row'}, and {_GOALS[goal]} is wanted"
    least = int(first.how == "left")
    return ShedChoice(strategy=name, why=why, needs_counts=needs_counts, least_results=least)


def _why_uncounted(lookups: Sequence[Lookup]) -> str | None:
    """Why master rows of a key are not the results of a row; None where they are."""
    first = lookups[0]
    if len(lookups) > 1:
        return "rows meet several masters, and what one has of a key says nothing of the others"
    if first.how in ("semi", "anti"):
        return f"how={first.how!r} gives a row once at most"
    if first.as_of is not None:
        return "as_of= gives a row one version at most"
    if first.condition is not None:
        return "a condition pairs rows by more than their key"
    return None


__all__ = ["ShedChoice", "chosen_strategy"]
