"""Where Tidemill meets Spark: sessions, enrichment, sources and sinks."""
