"""A retail shop, all on one machine, every part the real one: what `tidemill demo` runs."""
