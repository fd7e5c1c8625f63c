"""Figure 3 of the X-HYBRIDJOIN paper: four joins over sizes of the master data (a) and of memory (b)."""

from collections.abc import Callable, Sequence

from tidemill.lab.experiment import Curve, Experiment, Figure, Finding, Setting
from tidemill.lab.scaled import most_waiting_rows
from tidemill.lab.xhybrid_setup import PAPER_JOINS, SIZES, XHybridSetup, predicted_at_full_size

_LABELS = {
    "x_hybrid": "X-HYBRIDJOIN",
    "hybrid": "HYBRIDJOIN",
    "reduced_mesh": "R-MESHJOIN",
    "mesh": "MESHJOIN",
}
_EVEN = "MESHJOIN, no more waiting rows than HYBRIDJOIN"
_SLIGHTLY = 0.98
"""Of the rate of another: what is within 2 % of it counts as not below."""
_LEAST_FALL = 0.1
"""Half of the paper's fall from 70 % to 50 %."""

Rates = dict[str, list[float]]
"""Rows a second of each join, for each point of a figure."""


def run_3a(setting: Setting) -> Finding:
    millions = (0.5, 2.0, 8.0) if setting.quick else (0.5, 1.0, 2.0, 4.0, 8.0)
    rates = _rates(setting, millions, lambda x: (x * 1e6, 50))
    shares = [h / x for h, x in zip(rates["hybrid"], rates["x_hybrid"], strict=True)]
    order, why = _judged(rates)
    falls = shares[0] - shares[-1] > _LEAST_FALL
    full = [_full_size_share(x * 1e6) for x in (millions[0], millions[-1])]
    why.append(
        f"HYBRIDJOIN's share ({shares[0]:.0%} … {shares[-1]:.0%}) depends on the scale and is not settled by this run: the models, "
        f"unchecked at the paper's own sizes, say {full[0]:.0%} … {full[-1]:.0%} there"
    )
    measured = (
        f"HYBRIDJOIN has {shares[0]:.0%} of X-HYBRIDJOIN's rate at {millions[0]:g} M rows and {shares[-1]:.0%} at "
        f"{millions[-1]:g} M; {_in_words(rates)}"
    )
    figure = _figure("Rate by master rows, memory 50 MB", "master rows, millions", millions, rates)
    return _finding(order and falls, measured, why, rates, millions, figure)


def _full_size_share(master_rows: float) -> float:
    """HYBRIDJOIN's rate by X-HYBRIDJOIN's, as predicted for the paper's sizes."""
    plain, extended = (
        predicted_at_full_size(name, master_rows=master_rows, memory_mb=50) for name in ("hybrid", "x_hybrid")
    )
    return plain / extended


def run_3b(setting: Setting) -> Finding:
    memory_mb = (50.0, 150.0, 250.0) if setting.quick else (50.0, 100.0, 150.0, 200.0, 250.0)
    rates = _rates(setting, memory_mb, lambda x: (2e6, x))
    holds, why = _judged(rates)
    figure = _figure("Rate by memory, 2 M master rows", "memory, MB", memory_mb, rates)
    return _finding(holds, _in_words(rates), why, rates, memory_mb, figure)


def _rates(setting: Setting, points: Sequence[float], at: Callable[[float], tuple[float, float]]) -> Rates:
    setup = XHybridSetup.of(setting)
    rates: Rates = {name: [] for name in (*PAPER_JOINS, _EVEN)}
    for number, point in enumerate(points):
        master_rows, memory_mb = at(point)
        waiting_rows = 0
        for name in PAPER_JOINS:
            setting.progress(f"{name} at {point:g}", number / len(points))
            run = setup.run(name, master_rows=master_rows, memory_mb=memory_mb)
            rates[name].append(setup.runs.rows_per_s(run))
            if name == "hybrid":
                waiting_rows = most_waiting_rows(run)
        even = setup.run("mesh", master_rows=master_rows, memory_mb=memory_mb, waiting_rows=waiting_rows)
        rates[_EVEN].append(setup.runs.rows_per_s(even))
    return rates


def _judged(rates: Rates) -> tuple[bool, list[str]]:
    """Whether the paper's order holds at every point, and why not."""
    others = ("hybrid", "reduced_mesh", "mesh")
    ahead = all(_never_below(rates["x_hybrid"], rates[name]) for name in others)
    above_mesh = all(_never_below(rates["hybrid"], rates[name]) for name in ("reduced_mesh", "mesh"))
    reduced = _never_below(rates["reduced_mesh"], rates["mesh"])
    why = []
    if not (ahead and above_mesh):
        even = [h / m for h, m in zip(rates["hybrid"], rates[_EVEN], strict=True)]
        why.append(
            "our MESHJOIN holds a waiting row in 60 bytes, HYBRIDJOIN in 96, and it takes rows in when half have left, so "
            f"the scans have more rows waiting; with no more waiting rows for MESHJOIN, HYBRIDJOIN has {min(even):.2f} to "
            f"{max(even):.2f} times its rate"
        )
    if not reduced:
        why.append("our R-MESHJOIN falls below MESHJOIN")
    return ahead and above_mesh and reduced, why


def _never_below(upper: Sequence[float], lower: Sequence[float]) -> bool:
    return all(u >= _SLIGHTLY * low for u, low in zip(upper, lower, strict=True))


def _in_words(rates: Rates) -> str:
    names = ("hybrid", "reduced_mesh", "mesh")
    ratios = {n: [x / r for x, r in zip(rates["x_hybrid"], rates[n], strict=True)] for n in names}
    told = [f"{min(r):.2f} … {max(r):.2f} times {_LABELS[n]}" for n, r in ratios.items()]
    return f"X-HYBRIDJOIN is {', '.join(told)}"


def _figure(title: str, x_label: str, points: Sequence[float], rates: Rates) -> Figure:
    curves = [Curve(label=_LABELS.get(name, name), x=points, y=y) for name, y in rates.items()]
    return Figure(title=title, x_label=x_label, y_label="rows/s", curves=curves, log_y=True)


def _finding(
    holds: bool, measured: str, why: list[str], rates: Rates, points: Sequence[float], figure: Figure
) -> Finding:
    values = {
        f"{name} at {point:g}": rate
        for name, found in rates.items()
        for point, rate in zip(points, found, strict=True)
    }
    return Finding(holds=holds, measured=measured, reason="; ".join(why), values=values, figures=[figure])


_PAPER = "Naeem et al., X-HYBRIDJOIN for Near-Real-Time Data Warehousing, 2011"
EXPERIMENTS = [
    Experiment(
        id="xhybrid-3a",
        claim="X-HYBRIDJOIN is well above HYBRIDJOIN, which is slightly above R-MESHJOIN and MESHJOIN, for R = 0.5 … 8 M "
        "rows at 50 MB, Zipf 1; HYBRIDJOIN has about 70 % of X-HYBRIDJOIN's rate at 0.5 M rows and 50 % at 8 M",
        source=f"{_PAPER}, Fig. 3a",
        sizes=SIZES,
        run=run_3a,
    ),
    Experiment(
        id="xhybrid-3b",
        claim="the same order of the four joins for 50 … 250 MB of memory at R = 2 M rows",
        source=f"{_PAPER}, Fig. 3b",
        sizes=SIZES,
        run=run_3b,
    ),
]
