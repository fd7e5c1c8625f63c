"""Figure 7 f of the MOIJ paper: cost of a row as predicted and as measured."""

from tidemill.lab.compared import compared
from tidemill.lab.experiment import Experiment, Finding, Setting
from tidemill.lab.moij_setup import MASTER_ROW_BYTES, SIZES, SOURCE, MoijSetup

_MASTER_ROWS = 100e6


def run(setting: Setting) -> Finding:
    setup = MoijSetup.of(setting)
    data = setup.data(_MASTER_ROWS)
    points = [(name, share) for name in ("moij", "cache") for share in (0.02, 0.05, 0.1)]
    found = []
    for number, (name, share) in enumerate(points):
        setting.progress(f"{name} at {share:.0%}", number / len(points))
        done = setup.runs.run(name, data, int(share * data.master_rows * MASTER_ROW_BYTES))
        found.append((name, share, setup.runs.predicted_rows_per_s(done), setup.runs.rows_per_s(done)))
    return compared(found, x_label="memory as a share of the master data")


EXPERIMENTS = [
    Experiment(
        id="moij-7f",
        claim="the calculated cost is very close to the measured cost for MOIJ and for CACHEJOIN",
        source=f"{SOURCE}, Fig. 7f",
        sizes=SIZES,
        run=run,
    )
]
