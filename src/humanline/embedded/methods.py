"""What the demo compares. Nothing here imports torch until a run is built.

Every method: 192 steps of 16 prompts from the same groups (3072 prompts × 8 completions), AdamW (0.9, 0.99), 10 warm-up steps,
gradient norm 1. The learning rate and one more setting of each come from equal searches on other data orders and prompts
(docs/log.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from humanline.config import TrainConfig

PROMPTS_PER_STEP = 16
STEPS = 192
COMPLETIONS = 8
BOUNDS = (-1.5, 1.5)
"""of humanline clipping, nats: the method's defaults"""
KL_WEIGHT = 1e-3
"""β of every GRPO run"""
MethodName = Literal["grpo", "grpo-humanline", "dpo", "dpo-humanline", "kto", "kto-humanline", "grpo-unclipped", "positive-only"]
METHOD_NAMES: tuple[MethodName, ...] = get_args(MethodName)


@dataclass(frozen=True)
class Method:
    """One row of the demo's table."""

    name: str
    """on the command line and in file names"""
    title: str
    """in tables and figures"""
    family: Literal["GRPO", "DPO", "KTO", "control"]
    data: Literal["groups", "pairs", "labels", "positives"]
    """which file it learns from"""
    rows_per_prompt: int
    """rows of that file that stem from one prompt"""
    lr: float
    objective: Mapping[str, str | float] = field(hash=False)
    """fields of the objective, `name` among them"""
    sync_every: int | None = None
    """k; None = no humanline"""
    bounds: tuple[float, float] | None = None
    """of humanline clipping, nats; None = no humanline"""

    @property
    def humanline(self) -> bool:
        return self.sync_every is not None

    @property
    def settings(self) -> dict[str, Any]:
        """What tells this method from the others, for results and reports (JSON types)."""
        return {
            "objective": {name: str(value) if value == math.inf else value for name, value in self.objective.items()},
            "limit": list(self.bounds) if self.bounds else None,
            "sync_every": self.sync_every,
            "lr": self.lr,
            "batch_size": PROMPTS_PER_STEP * self.rows_per_prompt,
            "data": self.data,
        }

    def config(self, *, model: Path, data: Path, out: Path, seed: int, steps: int) -> TrainConfig:
        """The run of one seed; the seed is the order of the data."""
        from humanline.config import CheckpointConfig, DataConfig, LogConfig, OptimizerConfig, TrainConfig
        from humanline.limit import Clip, Off
        from humanline.objectives import DPO, GRPO, KTO, SFT

        objectives = {"grpo": GRPO, "dpo": DPO, "kto": KTO, "sft": SFT}
        return TrainConfig(
            model=str(model),
            data=str(data),
            out=str(out),
            objective=objectives[str(self.objective["name"])](**self.objective),
            limit=Clip(low=self.bounds[0], high=self.bounds[1]) if self.bounds else Off(),
            sync_every=self.sync_every,
            steps=steps,
            batch_size=PROMPTS_PER_STEP * self.rows_per_prompt,
            seed=seed,
            device="cpu",
            rows=DataConfig(template="none", eos=False),
            optimizer=OptimizerConfig(lr=self.lr, betas=(0.9, 0.99), warmup=10),
            checkpoint=CheckpointConfig(every=None),
            log=LogConfig(every=0, report=False),
        )


def _grpo(
    name: MethodName,
    title: str,
    family: Literal["GRPO", "control"] = "GRPO",
    *,
    lr: float,
    epsilon: float = 0.2,
    k: int | None = None,
) -> Method:
    objective: dict[str, str | float] = {"name": "grpo", "beta": KL_WEIGHT, "epsilon_low": epsilon, "epsilon_high": epsilon}
    return Method(name, title, family, "groups", 1, lr, objective, k, BOUNDS if k else None)


def _dpo(name: MethodName, title: str, *, lr: float, beta: float, k: int | None = None) -> Method:
    return Method(name, title, "DPO", "pairs", 1, lr, {"name": "dpo", "beta": beta}, k, BOUNDS if k else None)


def _kto(name: MethodName, title: str, *, lr: float, beta: float, k: int | None = None) -> Method:
    return Method(name, title, "KTO", "labels", COMPLETIONS, lr, {"name": "kto", "beta": beta}, k, BOUNDS if k else None)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        _grpo("grpo", "GRPO offline", lr=1e-3, epsilon=0.5),
        _grpo("grpo-humanline", "GRPO offline + humanline", lr=1e-3, k=16),
        _dpo("dpo", "DPO offline", lr=1e-3, beta=1.0),
        _dpo("dpo-humanline", "DPO offline + humanline", lr=3e-4, beta=1.0, k=16),
        _kto("kto", "KTO offline", lr=1e-3, beta=0.1),
        _kto("kto-humanline", "KTO offline + humanline", lr=1e-3, beta=1.0, k=16),
        _grpo("grpo-unclipped", "GRPO, no clip, no sync", "control", lr=1e-3, epsilon=math.inf),
        Method("positive-only", "positive-only (best of 8)", "control", "positives", 1, 1e-3, {"name": "sft"}),
    )
}
"""in the order of the table"""
