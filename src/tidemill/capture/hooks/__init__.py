"""Interception of committed rows, one store a file."""
