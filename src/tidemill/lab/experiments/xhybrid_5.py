"""Figure 5 of the X-HYBRIDJOIN paper: cost of a row as predicted and as measured."""

from tidemill.lab.compared import compared
from tidemill.lab.experiment import Experiment, Finding, Setting
from tidemill.lab.xhybrid_setup import PAPER_JOINS, SIZES, XHybridSetup


def run(setting: Setting) -> Finding:
    setup = XHybridSetup.of(setting)
    points = [(name, memory) for name in PAPER_JOINS for memory in (50.0, 250.0)]
    found = []
    for number, (name, memory) in enumerate(points):
        setting.progress(f"{name} at {memory:g} MB", number / len(points))
        done = setup.run(name, master_rows=2e6, memory_mb=memory)
        found.append((name, memory, setup.runs.predicted_rows_per_s(done), setup.runs.rows_per_s(done)))
    return compared(found, x_label="memory, MB")


EXPERIMENTS = [
    Experiment(
        id="xhybrid-5",
        claim="the predicted cost closely matches the measured cost for each of the four joins",
        source="Naeem et al., X-HYBRIDJOIN for Near-Real-Time Data Warehousing, 2011, Fig. 5",
        sizes=SIZES,
        run=run,
    )
]
