"""The shedding strategies by name, and the one for a goal and a kind of join."""

from tidemill.core.errors import unknown_choice
from tidemill.join.shedding.cluster import Cluster
from tidemill.join.shedding.keep import Keep
from tidemill.join.shedding.sample import Sample
from tidemill.join.shedding.strategy import Goal, Strategy
from tidemill.join.shedding.top import Top

STRATEGIES: dict[str, type[Strategy]] = {kind.name: kind for kind in (Cluster, Keep, Sample, Top)}


def make_strategy(name: str) -> Strategy:
    if name not in STRATEGIES:
        raise unknown_choice("shedding strategy", name, sorted(STRATEGIES))
    return STRATEGIES[name]()


def strategy_for(goal: Goal, *, many_to_many: bool) -> str:
    """Its name, by Table 2 of the MESHJOIN paper.

    >>> strategy_for("most", many_to_many=True), strategy_for("sample", many_to_many=False)
    ('top', 'sample')
    """
    if goal not in ("most", "sample"):
        raise unknown_choice("shedding goal", goal, ["most", "sample"])
    if many_to_many:
        return Top.name if goal == "most" else Cluster.name
    return Keep.name if goal == "most" else Sample.name


__all__ = ["STRATEGIES", "make_strategy", "strategy_for"]
