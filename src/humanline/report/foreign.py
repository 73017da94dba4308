"""Directories that hold no run of ours: what they are instead, and the next move."""

from __future__ import annotations

from pathlib import Path

TOOLS = {
    "trainer_state.json": "the Trainer of transformers or TRL",
    "training_args.bin": "the Trainer of transformers or TRL",
    "events.out.tfevents.*": "TensorBoard",
    "wandb": "Weights & Biases",
    ".hydra": "a program that uses Hydra (verl, HALOs)",
}
"""what lies in the directories of other tools"""


def not_a_run(folder: Path) -> str:
    """Why a directory without config.yaml is no run."""
    inside = sorted(str(entry.parent) for entry in folder.glob("*/config.yaml"))
    if inside:
        named = " ".join(inside[:3]) + (" …" if len(inside) > 3 else "")
        return f"{folder} holds {len(inside)} runs but is none itself. Name them: `humanline report {named} --out PAGE`."
    for pattern, tool in TOOLS.items():
        if found := next(folder.glob(pattern), None):
            return (
                f"{folder} looks like a directory of {tool} ({found.name}). "
                "Expected one that `humanline train` wrote (config.yaml, metrics.jsonl)."
            )
    names = sorted(entry.name for entry in folder.iterdir() if entry.name != ".lock")
    if not names:
        return f"{folder} is empty: a run has config.yaml before its first step. If one was started there, it ended while it was loading."
    shown = ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
    return f"{folder} has no config.yaml (but {shown}), so it holds no run of `humanline train`."
