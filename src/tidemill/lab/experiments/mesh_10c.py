"""mesh-10c: MESHJOIN and index nested loops as the skew of the master data grows."""

from itertools import pairwise

from tidemill.lab.data.zipf import ZipfData
from tidemill.lab.experiment import Experiment, Figure, Finding, Setting
from tidemill.lab.mesh_beside_inl import Rates, curves, largest_error, rates_at

SKEWS = (0.1, 0.4, 0.7, 1.0)
MEMORY_SHARE = 0.05
FAR_AHEAD = 10.0
FLAT = 0.01
"""A rate that is higher by less has not risen."""


def run(setting: Setting) -> Finding:
    rows = 100_000 if setting.quick else 1_000_000
    found = []
    for number, skew in enumerate(SKEWS):
        setting.progress(f"master data of Zipf {skew:g}", number / len(SKEWS))
        data = ZipfData(master_rows=rows, exponent=0.5, keys=rows, master_exponent=skew, seed=setting.seed)
        memory_bytes = int(MEMORY_SHARE * data.workload.master_bytes)
        rates = rates_at(skew, data, memory_bytes, setting)
        assert rates is not None, "5 % are enough for both"
        found.append(rates)
    lasting = {name: not rises(found, name) for name in ("mesh", "inl")}
    lead = min(rates.lead for rates in found)
    rising = [name for name, falls in lasting.items() if not falls]
    first, last = found[0].measured, found[-1].measured
    reasons = [
        f"the rate of {' and '.join(rising)} does not fall" if rising else "",
        f"MESHJOIN leads by {lead:.1f} times only" if lead < FAR_AHEAD else "",
    ]
    reason = "; ".join(filter(None, reasons))
    return Finding(
        holds=not reason,
        measured=f"from Zipf {SKEWS[0]:g} to {SKEWS[-1]:g} of the master data MESHJOIN falls from {first['mesh']:,.0f} to "
        f"{last['mesh']:,.0f} rows/s, index nested loops from {first['inl']:.1f} to {last['inl']:.1f}; MESHJOIN leads by "
        f"{lead:.0f} times at least",
        reason=reason,
        values={"least_lead": lead, "largest_error": largest_error(found)},
        figures=[
            Figure(
                title=f"Rate over the skew of the master data, {rows / 1e6:g} M rows, virtual time",
                x_label="Zipf exponent of the master data", y_label="rows/s", log_y=True, curves=curves(found),
            )
        ],
    )  # fmt: skip


def rises(found: list[Rates], name: str) -> bool:
    """Whether a rate goes up anywhere, or does not come down in all."""
    rates = [one.measured[name] for one in found]
    goes_up = any(after > before * (1 + FLAT) for before, after in pairwise(rates))
    return goes_up or rates[-1] >= rates[0]


EXPERIMENTS = [
    Experiment(
        id="mesh-10c",
        claim="The rates of MESHJOIN and of index nested loops fall as the skew of the master data grows from 0.1 to 1; "
        "MESHJOIN stays far ahead",
        source="Polyzotis et al., TKDE 2008, Fig. 10c",
        sizes="1 M master rows of 120 B over as many values (3.5 M there), stream of Zipf 0.5, memory 5 %; quick 100,000; "
        "virtual time, disk of 2008",
        run=run,
    )
]
