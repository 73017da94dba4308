"""Two processes on one machine (DDP over gloo) train as one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders import save_model
from humanline import configfile
from humanline.config import CheckpointConfig, LogConfig, OptimizerConfig, TrainConfig
from humanline.limit import Clip
from humanline.objectives import DPO, GRPO, KTO, Objective
from runs import lines, write_rows


@pytest.mark.slow
@pytest.mark.parametrize("objective", [DPO(), KTO(), GRPO(beta=0.1)], ids=lambda objective: objective.name)
def test_R9_two_processes_give_the_metrics_of_one(tmp_path: Path, objective: Objective):
    """Steps of 3 groups over 2 processes, so micro-batch counts differ: losses, gradient norms, KTO's K and shares within 1e-5."""
    config = TrainConfig(
        model=save_model(tmp_path / "model"),
        data=write_rows(tmp_path / "rows.jsonl", objective.kind),
        objective=objective,
        limit=Clip(-0.3, 0.3),
        sync_every=3,
        steps=8,
        batch_size=3,
        micro_batch_tokens=60,
        device="cpu",
        optimizer=OptimizerConfig(lr=1e-3),
        checkpoint=CheckpointConfig(every=3),
        log=LogConfig(every=0, report=False),
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    metrics = []
    for processes in (1, 2):
        out, settings = tmp_path / f"run-{processes}", tmp_path / f"run-{processes}.yaml"
        settings.write_text(configfile.dump(config.replace(out=str(out))))
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if processes == 2 else []
        command = [sys.executable, *launcher, "-m", "humanline", "train", str(settings)]
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert finished.returncode == 0, finished.stderr[-3000:]
        metrics.append(lines(out))
    one, two = metrics
    assert len(one) == len(two) == 8
    for ours, theirs in zip(one, two, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert theirs[name] == (value if value is None else pytest.approx(value, abs=1e-5)), name
