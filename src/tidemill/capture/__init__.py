"""Changes leave the source: hooks see committed rows, the regulator brings them to the staging log."""
