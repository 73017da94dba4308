"""Where the packaged files of task "score" lie, and how they are read."""

from __future__ import annotations

import hashlib
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from humanline.errors import DataError

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from humanline.embedded.score import ScoreTask

ROOT = Path(__file__).parent / "assets" / "score"
MODEL = ROOT / "model"
GROUPS = ROOT / "groups.parquet"
HELD_OUT = ROOT / "held_out.parquet"
TASK = ROOT / "task.safetensors"
MANIFEST = ROOT / "manifest.json"


class HeldOut(NamedTuple):
    """Prompts that no method trains on, each with one completion of the start model. N rows · P prompt · T completion symbols."""

    prompt_NP: Int[Tensor, "N P"]
    completion_NT: Int[Tensor, "N T"]
    utility_N: Float[Tensor, "N"]
    """of that completion, float64"""


def manifest() -> dict[str, Any]:
    """How the files were made, and the size and sha256 of each."""
    return json.loads(MANIFEST.read_text(encoding="utf-8"))


def checksum(path: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def verify() -> dict[str, Any]:
    """The manifest, after every file was compared with it; `DataError` names the first that differs."""
    recorded = manifest()
    for name, facts in recorded["files"].items():
        path = ROOT / name
        found = checksum(path) if path.is_file() else "no file"
        if found != facts["sha256"]:
            raise DataError(
                f"{path}: packaged file is damaged ({found[:12]}, expected {facts['sha256'][:12]}).\n"
                "  Reinstall humanline, or make the files anew with `python -m humanline.embedded.make_score`."
            )
    return recorded


def fingerprint(recorded: dict[str, Any]) -> str:
    """One sha256 over those of all packaged files."""
    return hashlib.sha256(json.dumps(recorded["files"], sort_keys=True).encode()).hexdigest()


def task() -> ScoreTask:
    """The packaged utility and chain."""
    from safetensors.torch import load_file

    from humanline.embedded.score import ScoreTask

    return ScoreTask(**load_file(TASK))


def held_out(rows: int | None = None) -> HeldOut:
    """The first `rows` held-out prompts; None = all."""
    import pyarrow.parquet
    import torch

    from humanline.embedded.score import to_ids

    table = pyarrow.parquet.read_table(HELD_OUT).slice(0, rows).to_pydict()
    return HeldOut(to_ids(table["prompt"]), to_ids(table["completion"]), torch.tensor(table["reward"], dtype=torch.float64))


def start_utility(rows: int | None = None) -> float:
    """Mean utility of the start model on the first `rows` held-out prompts; None = all. Needs no torch."""
    import pyarrow.parquet

    return statistics.fmean(pyarrow.parquet.read_table(HELD_OUT).slice(0, rows)["reward"].to_pylist())
