"""Checkpoints: everything the next step depends on, written atomically, with nothing in them that could run code.

RUN/checkpoints/step-000012/   a Hugging Face model directory, plus
    optimizer.safetensors      AdamW's averages and step counts by parameter name
    reference.safetensors      pending reference numbers (absent when the reference is fixed: RUN/reference.safetensors)
    eval-reference.safetensors the starting policy's log-probs of held-out rows
    state.json                 step, sync position, and what the run was started on
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from humanline.errors import CheckpointError

FORMAT = 1
UNTOUCHED = "untouched"
_NAME = re.compile(r"step-(\d{6,})")


def path_of(run: Path, step: int) -> Path:
    """RUN/checkpoints/step-000012"""
    return run / "checkpoints" / f"step-{step:06d}"


def steps(run: Path) -> list[int]:
    """Steps of the complete checkpoints of a run, ascending."""
    folder = run / "checkpoints"
    if not folder.is_dir():
        return []
    found = (_NAME.fullmatch(entry.name) for entry in folder.iterdir() if (entry / "state.json").is_file())
    return sorted(int(match[1]) for match in found if match)


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """A directory that appears under its name complete or not at all. A failed write (full disk) leaves older ones untouched."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        for file in partial.rglob("*"):
            if file.is_file():
                with open(file, "rb") as handle:
                    os.fsync(handle.fileno())
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{target} could not be written: {error}. Earlier checkpoints are untouched; free space or fix permissions, then `--resume`."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def save(
    run: Path, step: int, keep: int, *, parts: Callable[[Path], None], optimizer: dict[str, torch.Tensor], state: dict[str, Any]
) -> Path:
    """Write one checkpoint and remove all but the newest `keep`. `parts` writes the other files into the directory."""
    target = path_of(run, step)
    with atomic_directory(target) as folder:
        parts(folder)
        save_file(optimizer, folder / "optimizer.safetensors")
        (folder / "state.json").write_text(json.dumps({"format": FORMAT, "step": step, **state}, indent=1) + "\n")
    for old in steps(run)[:-keep]:
        shutil.rmtree(path_of(run, old))
    return target


def load(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(state, optimizer tensors) of a checkpoint; a missing or damaged part is an error, never a fresh start."""
    try:
        state = json.loads((folder / "state.json").read_text())
        optimizer = load_file(folder / "optimizer.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{folder} cannot be read: {error}. Remove it to resume from an earlier checkpoint.") from error
    found = state.get("format") if isinstance(state, dict) else None
    if found != FORMAT:
        raise CheckpointError(f"{folder}/state.json has format {found!r}: this version reads format {FORMAT}.")
    types: dict[str, type | tuple[type, ...]] = {
        "step": int,
        "of": int,
        "data": str,
        "held_out": str,
        "settings": dict,
        "synced_before": (int, type(None)),
    }
    wrong = [name for name, kind in types.items() if not isinstance(state.get(name), kind)]
    if wrong or state["step"] != int(folder.name.rpartition("-")[2]):
        raise CheckpointError(
            f"{folder}/state.json is damaged at {(wrong or ['step'])[0]!r}. Remove {folder} to resume from an earlier checkpoint."
        )
    _check_sync(folder, state)
    return state, optimizer


def _check_sync(folder: Path, state: dict[str, Any]) -> None:
    """Where there are reference numbers, the checkpoint knows before which update the reference was taken."""
    before = state["synced_before"]
    referenced = any((home / "reference.safetensors").is_file() for home in (folder, folder.parents[1]))
    # Fresh data may have re-synced the reference for the step that follows.
    if (before is None and referenced) or (before is not None and not 1 <= before <= state["step"] + 1):
        raise CheckpointError(
            f"{folder}/state.json is damaged at 'synced_before': {json.dumps(before)}, expected a step from 1 to {state['step'] + 1}. "
            f"Remove {folder} to resume from an earlier checkpoint."
        )


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: list[str]) -> dict[str, torch.Tensor]:
    """AdamW's state as `exp_avg.NAME`, `exp_avg_sq.NAME`, `step.NAME`; `names` in the order of the parameter groups.

    A parameter that never had a gradient has no state, and an empty `untouched.NAME` says so.
    """
    state = optimizer.state_dict()["state"]
    return {
        f"{part}.{name}": torch.as_tensor(value).detach().cpu().contiguous()
        for number, name in enumerate(names)
        for part, value in (state.get(number) or {UNTOUCHED: torch.zeros(0)}).items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, names: list[str], tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """The inverse of `optimizer_tensors`: a parameter starts without state exactly where it had none."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    untouched: set[str] = set()
    shapes = [parameter.shape for group in optimizer.param_groups for parameter in group["params"]]
    number_of = {name: number for number, name in enumerate(names)}
    for key, value in tensors.items():
        part, _, name = key.partition(".")
        if name not in number_of:
            raise CheckpointError(
                f"{folder}/optimizer.safetensors holds {name!r}, which this model has not: it belongs to another model."
            )
        if part == UNTOUCHED:
            untouched.add(name)
            continue
        if part != "step" and value.shape != shapes[number_of[name]]:
            raise CheckpointError(
                f"{folder}/optimizer.safetensors has {list(value.shape)} for {key!r}, where the model has "
                f"{list(shapes[number_of[name]])}: it belongs to another model."
            )
        state.setdefault(number_of[name], {})[part] = value
    parts = {"step", "exp_avg", "exp_avg_sq"}
    found = {name: state.get(number_of[name], {}).keys() for name in names}
    missing = next((name for name in names if (found[name] if name in untouched else not parts <= found[name])), None)
    if missing:
        raise CheckpointError(f"{folder}/optimizer.safetensors lacks {missing!r}: it belongs to another model or is incomplete.")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
