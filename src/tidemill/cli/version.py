"""Versions of the package and of what it stands on, read without importing any of it."""

import json
import platform
from importlib import metadata

import typer

_PACKAGES = {"tidemill": "tidemill", "PySpark": "pyspark", "PyArrow": "pyarrow", "DuckDB": "duckdb"}


def versions() -> dict[str, str | None]:
    """Version by name; None for a package that is not installed."""
    found = {name: installed_version(package) for name, package in _PACKAGES.items()}
    return {"tidemill": found.pop("tidemill"), "Python": platform.python_version(), **found}


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def version(*, json_output: bool) -> None:
    found = versions()
    if json_output:
        typer.echo(json.dumps({name.lower(): number for name, number in found.items()}))
        return
    for name, number in found.items():
        typer.echo(f"{name:<9} {number or 'not installed'}")


__all__ = ["installed_version", "version", "versions"]
