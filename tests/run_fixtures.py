"""The fixtures of tests that train: a saved tiny model, and settings of a short run. A plugin: named in `pytest_plugins`."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import save_model
from humanline.config import CheckpointConfig, LogConfig, OptimizerConfig, TrainConfig
from humanline.limit import Clip
from humanline.objectives import DPO, Objective
from runs import write_rows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def settings(model: str, tmp_path: Path):
    """Settings of a 12-step run with k = 3 over 14 rows in steps of 3: epochs end inside sync windows, steps are uneven."""

    def make(objective: Objective = DPO(), name: str = "run", **changes: object) -> TrainConfig:
        values: dict[str, object] = dict(
            model=model,
            data=write_rows(tmp_path / f"{objective.kind}.jsonl", objective.kind),
            out=str(tmp_path / name),
            objective=objective,
            limit=Clip(-0.3, 0.3),
            sync_every=3,
            steps=12,
            batch_size=3,
            micro_batch_tokens=60,
            device="cpu",
            optimizer=OptimizerConfig(lr=1e-2, schedule="cosine", warmup=2, weight_decay=0.1),
            checkpoint=CheckpointConfig(every=None),
            log=LogConfig(every=0, report=False),
        )
        return TrainConfig(**(values | changes))

    return make
