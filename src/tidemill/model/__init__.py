"""Predictions before a run: arithmetic on sizes, skew and calibrated costs."""
