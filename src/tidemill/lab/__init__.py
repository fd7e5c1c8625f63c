"""Experiments and benchmarks: what we claim, measured beside peers in the same run."""
