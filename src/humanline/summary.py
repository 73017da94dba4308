"""RUN/summary.json: what a run knows about itself besides its metrics, written when it begins and again when it has finished.

    {"format": "humanline-summary-1", "finished": true, "steps": {"first": 1, "last": 192},
     "seconds": {"data": 0.4, "reference": 2.1, "train": 30.2, "other": 1.3}, "versions": {…}, "machine": {…}}

`first` is above 1 when the run was resumed: `seconds` are those of the steps from there on, in the process that finished it.
`other` is evaluation, saving and writing down.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from humanline import __version__

FORMAT = "humanline-summary-1"
LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "numpy")


def write_summary(
    run: Path, *, finished: bool, first: int, last: int, seconds: Mapping[str, float], device: torch.device, processes: int
) -> None:
    """Write RUN/summary.json; a reader sees the old one or the new one."""
    content = {
        "format": FORMAT,
        "finished": finished,
        "steps": {"first": first, "last": last},
        "seconds": {part: round(value, 3) for part, value in seconds.items()},
        "versions": versions(),
        "machine": machine(device, processes),
    }
    partial = run / ".summary.json.partial"
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, run / "summary.json")


def versions() -> dict[str, str]:
    """Of this package, of Python and of the libraries that numbers depend on."""
    return {"humanline": __version__, "python": platform.python_version()} | {name: version(name) for name in LIBRARIES}


def machine(device: torch.device, processes: int) -> dict[str, Any]:
    """Where a run took place."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "system": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "device": name,
        "processes": processes,
    }
