"""Rows become visible: the loader service, its client and the warehouses behind it."""
