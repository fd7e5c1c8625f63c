"""Master data and streams of the papers' experiments, one set a file."""
