"""mesh-10d: MESHJOIN and index nested loops on weather-like data."""

from tidemill.lab.data.weather import WeatherData
from tidemill.lab.experiment import Experiment, Figure, Finding, Setting
from tidemill.lab.mesh_beside_inl import curves, largest_error, rates_at

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
    leads = [rates.lead for rates in found]
    reasons = [
        f"{' and '.join(refused)} of {data.workload.master_bytes / 1e6:.0f} MB are too little for our joins" if refused else "",
        f"the lead is {min(leads):.1f} times only" if min(leads) < LARGE_MARGIN else "",
    ]  # fmt: skip
    reason = "; ".join(filter(None, reasons))
    return Finding(
        holds=not reason,
        measured=f"from {found[0].x:g} % to {found[-1].x:g} % of memory {found[0].measured['mesh']:,.0f} to "
        f"{found[-1].measured['mesh']:,.0f} rows/s beside {found[-1].measured['inl']:,.0f}: {min(leads):.0f} to "
        f"{max(leads):.0f} times as fast, where a stream row finds {data.workload.rows_per_key:.0f} master rows",
        reason=reason,
        values={"least_lead": min(leads), "largest_error": largest_error(found)},
        figures=[
            Figure(
                title=f"Weather-like data, {data.master_rows / 1e6:g} M master rows, virtual time",
                x_label="memory, % of the master data", y_label="rows/s", log_x=True, log_y=True, curves=curves(found),
            )
        ],
    )  # fmt: skip


EXPERIMENTS = [
    Experiment(
        id="mesh-10d",
        claim="MESHJOIN outruns index nested loops by a large margin on weather data too, for memory of 1 to 10 %",
        source="Polyzotis et al., TKDE 2008, Fig. 10d",
        sizes="2 M rows of 32 B on either side (10 M there), values 0 to 36,000; quick 500,000; virtual time, disk of 2008",
        run=run,
    )
]
