"""The papers' claims, one file an experiment; each module has `EXPERIMENTS` (`lab/experiment.py`)."""
