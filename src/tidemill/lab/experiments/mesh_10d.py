"""mesh-10d: MESHJOIN and index nested loops on weather-like data."""

from tidemill.lab.data.weather import WeatherData
from tidemill.lab.experiment import Curve, Experiment, Figure, Finding, Setting
from tidemill.lab.mesh_beside_inl import COSTS, curves, largest_error, rates_at
from tidemill.model.tune import best_rate

SHARES = (0.01, 0.02, 0.05, 0.1)
LARGE_MARGIN = 5.0


def run(setting: Setting) -> Finding:
    data = WeatherData.of_meshjoin(scale=20 if setting.quick else 5, seed=setting.seed)
    found, refused = [], []
    for number, share in enumerate(SHARES):
        setting.progress(f"memory {share:.0%} of the master data", number / len(SHARES))
        rates = rates_at(100 * share, data, int(share * data.workload.master_bytes), setting)
        if rates is None:
            refused.append(f"{share:.0%}")
        else:
            found.append(rates)
    paper = _predicted_leads(setting.seed)
    leads = [rates.lead for rates in found]
    least = min(*leads, *paper.values())
    small = f"{' and '.join(refused)} of {data.workload.master_bytes / 1e6:.0f} MB are too little to run, there the model speaks alone"
    return Finding(
        holds=least >= LARGE_MARGIN,
        measured=f"{data.master_rows:,} rows, {found[0].x:g} % to {found[-1].x:g} % of memory: {found[0].measured['mesh']:,.0f} to "
        f"{found[-1].measured['mesh']:,.0f} rows/s beside {found[-1].measured['inl']:,.0f}, {min(leads):.0f} to {max(leads):.0f} times as "
        f"fast; model at 10 M rows, 1 % to 10 %: {min(paper.values()):.0f} to {max(paper.values()):.0f} times. A stream row finds "
        f"{data.workload.rows_per_key:.0f} master rows here, so putting them out is most of the work of MESHJOIN",
        reason=(small if refused else "")
        if least >= LARGE_MARGIN
        else f"the lead is {least:.1f} times only: both put out the same rows",
        values={"least_lead": least, "largest_error": largest_error(found)},
        figures=[
            Figure(
                title=f"Weather-like data, {data.master_rows / 1e6:g} M master rows, virtual time",
                x_label="memory, % of the master data", y_label="rows/s", log_x=True, log_y=True, curves=curves(found),
            ),
            Figure(
                title="Weather-like data, 10 M master rows",
                x_label="memory, % of the master data", y_label="times index nested loops", log_x=True,
                curves=[Curve(label="lead of mesh", x=list(paper), y=list(paper.values()), kind="predicted")],
            ),
        ],
    )  # fmt: skip


def _predicted_leads(seed: int) -> dict[float, float]:
    """At the paper's size, by memory in per cent."""
    workload = WeatherData.of_meshjoin(scale=1, seed=seed).workload
    leads = {}
    for share in SHARES:
        memory_bytes = int(share * workload.master_bytes)
        rate = {
            name: best_rate(workload, costs, memory_bytes, algorithms=[name]).rows_per_s
            for name, costs in COSTS.items()
        }
        leads[100 * share] = rate["mesh"] / rate["inl"]
    return leads


EXPERIMENTS = [
    Experiment(
        id="mesh-10d",
        claim="MESHJOIN outruns index nested loops by a large margin on weather data too, for memory of 1 to 10 %",
        source="Polyzotis et al., TKDE 2008, Fig. 10d",
        sizes="model at 10 M rows of 32 B, values 0 to 36,000; runs in virtual time over 2 M rows, quick 500,000; disk of 2008",
        run=run,
    )
]
