"""Figure 7 d and e of the MOIJ paper: MOIJ and CACHEJOIN on TPC-H and on weather data."""

from collections.abc import Callable
from dataclasses import replace

from tidemill.core.errors import SpecError
from tidemill.lab.data.data_set import DataSet
from tidemill.lab.data.tpch import TpchData, generator
from tidemill.lab.data.weather import WeatherData
from tidemill.lab.experiment import Experiment, Finding, Setting
from tidemill.lab.moij_setup import SOURCE, MoijSetup, Pair, is_near, pairs_figure, pairs_values

_TPCH_QUICK, _TPCH_FULL = 0.2, 1.0
_WEATHER_QUICK, _WEATHER_FULL = 100, 10
_PAGE_BYTES = 16 * 1024
"""A segment, so small that 1 % of the master data holds what a join needs at least."""
_SHARES = [0.01, 0.04, 0.1]
_X_LABEL = "memory as a share of the master data"


def run_7d(setting: Setting) -> Finding:
    try:
        generator()
    except SpecError as missing:
        return Finding.not_measured(str(missing))
    factor = _TPCH_QUICK if setting.quick else _TPCH_FULL

    def data(distinct: bool) -> DataSet:
        return TpchData(scale_factor=factor, distinct=distinct, page_bytes=_PAGE_BYTES)

    pairs, even = _pairs(setting, data)
    ratio = pairs[-1].ratio
    holds = is_near(ratio, 1.8)
    reason = (
        "plain TPC-H orders every part about equally often, so there is nothing for hot rows to gain; what is left are waiting "
        f"rows: MOIJ holds more of them, but its master data has four offers a part where CACHEJOIN's has one. Both on all "
        f"offers: {even.ratio:.2f}"
    )
    return Finding(
        holds=holds,
        measured=f"at 10 % memory MOIJ has {ratio:.2f} times CACHEJOIN's rate, CACHEJOIN on one offer a part",
        reason=reason,
        values={**pairs_values(_SHARES, pairs), "ratio on all offers": even.ratio},
        figures=[pairs_figure("TPC-H: rate by memory", _X_LABEL, _SHARES, pairs, log_y=True)],
    )


def run_7e(setting: Setting) -> Finding:
    scale = _WEATHER_QUICK if setting.quick else _WEATHER_FULL

    def data(distinct: bool) -> DataSet:
        return WeatherData.of_moij(scale=scale, distinct=distinct, seed=setting.seed, page_bytes=_PAGE_BYTES)

    pairs, even = _pairs(setting, data)
    ratios = [pair.ratio for pair in pairs]
    holds = min(ratios) > 1
    small, whole = data(True).workload.master_bytes, data(False).workload.master_bytes
    reason = (
        f"one report a longitude is {small / whole:.1%} of the data, and CACHEJOIN then has memory for much or all of it, while "
        f"MOIJ gives {data(False).workload.rows_per_key:.0f} output rows for a stream row. Both on all reports: {even.ratio:.2f}"
    )
    told = ", ".join(f"{r:.2f} at {s:.0%}" for r, s in zip(ratios, _SHARES, strict=True))
    return Finding(
        holds=holds,
        measured=f"MOIJ's rate by CACHEJOIN's on one report a longitude: {told} of memory",
        reason="" if holds else reason,
        values={**pairs_values(_SHARES, pairs), "ratio on all reports": even.ratio},
        figures=[pairs_figure("Weather: rate by memory", _X_LABEL, _SHARES, pairs, log_y=True)],
    )


def _pairs(setting: Setting, data: Callable[[bool], DataSet]) -> tuple[list[Pair], Pair]:
    """MOIJ on all rows and CACHEJOIN on distinct ones for each memory; and both on all rows for the most memory."""
    setup = replace(MoijSetup.of(setting), page_bytes=_PAGE_BYTES)
    whole, distinct = data(False), data(True)
    pairs = []
    for number, share in enumerate(_SHARES):
        setting.progress(f"memory {share:.0%}", number / (len(_SHARES) + 1))
        pairs.append(setup.pair(whole, int(whole.workload.master_bytes * share), cache_data=distinct))
    return pairs, setup.pair(whole, int(whole.workload.master_bytes * _SHARES[-1]))


EXPERIMENTS = [
    Experiment(
        id="moij-7d",
        claim="on TPC-H (partsupp and lineitem) MOIJ is about 1.8 times as fast as CACHEJOIN, which gets one offer a part, with "
        "memory for 10 % of R",
        source=f"{SOURCE}, Fig. 7d",
        sizes=f"scale factor {_TPCH_QUICK:g} (quick) or {_TPCH_FULL:g} instead of a part of 100, rows of 223 B and 138 B; "
        "segments and seeks divided by 6; disk of 2008 in virtual time",
        run=run_7d,
    ),
    Experiment(
        id="moij-7e",
        claim="on weather data joined by longitude MOIJ is ahead of CACHEJOIN, which gets one report a longitude, at every memory "
        "from 1 % to 10 % of R",
        source=f"{SOURCE}, Fig. 7e",
        sizes=f"weather-like data, 20 M reports of 128 B divided by {_WEATHER_QUICK} (quick) or {_WEATHER_FULL}, all 36,000 "
        "longitudes; segments and seeks divided by 6; disk of 2008 in virtual time",
        run=run_7e,
    ),
]
