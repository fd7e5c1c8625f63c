"""The one form in which benchmarks leave their results."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemill.core.files import write_atomically


def machine() -> dict[str, Any]:
    """What the results were measured on."""
    import psutil

    return {
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def write_results(path: Path, name: str, seed: int, results: Sequence[Mapping[str, Any]]) -> None:
    """{"name", "machine", "seed", "results"} as JSON."""
    envelope = {"name": name, "machine": machine(), "seed": seed, "results": list(results)}
    write_atomically(path, (json.dumps(envelope, indent=1) + "\n").encode())


__all__ = ["machine", "write_results"]
