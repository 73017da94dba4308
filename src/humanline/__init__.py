"""Align any causal language model on feedback from anywhere, at online quality and offline cost.

Names below are imported on first use, so that `import humanline` and the top of the command line stay quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from humanline.config import TrainConfig
    from humanline.configfile import load_config, load_recipe
    from humanline.errors import HumanlineError
    from humanline.limit import Clip, Off, Reject
    from humanline.objectives import DPO, GRPO, IPO, KTO, SFT, Objective, SimPO
    from humanline.run import train

__version__ = "0.1.0"

_HOME = {
    "train": "run",
    "TrainConfig": "config",
    "load_config": "configfile",
    "load_recipe": "configfile",
    "HumanlineError": "errors",
    **dict.fromkeys(("Off", "Clip", "Reject"), "limit"),
    **dict.fromkeys(("DPO", "GRPO", "IPO", "KTO", "SFT", "Objective", "SimPO"), "objectives"),
}

__all__ = [
    "DPO",
    "GRPO",
    "IPO",
    "KTO",
    "SFT",
    "Clip",
    "HumanlineError",
    "Objective",
    "Off",
    "Reject",
    "SimPO",
    "TrainConfig",
    "load_config",
    "load_recipe",
    "train",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'humanline' has no attribute {name!r}")
    return getattr(importlib.import_module(f"humanline.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
