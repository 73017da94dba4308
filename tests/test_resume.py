"""`train` going on after a stop as if it had never happened: checkpoints, signals, kills, and what a resume refuses."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from builders import tiny_llama
from humanline import checkpoint, configfile
from humanline.config import CheckpointConfig, EvalConfig
from humanline.errors import CheckpointError, Interrupted, TrainingError
from humanline.keeper import Keeper
from humanline.limit import Clip, Off, Reject
from humanline.loop import Loop
from humanline.objectives import DPO, GRPO, KTO, SFT
from humanline.run import train
from runs import Stop, assert_same_run, lines, stop_before, write_rows

pytest_plugins = ("run_fixtures",)


@pytest.mark.parametrize(
    ("objective", "limit", "sync_every"),
    [
        (DPO(), Clip(-0.3, 0.3), 3),
        (KTO(), Reject(), 3),
        (GRPO(beta=0.1), Clip(), 5),
        (GRPO(beta=0.1), Off(), None),
        (SFT(), Off(), None),
    ],
    ids=["dpo", "kto-reject", "grpo", "grpo-plain", "sft"],
)
def test_R4_resuming_at_every_step_equals_never_stopping(settings, monkeypatch, objective, limit, sync_every):
    """Killed before each step of 12 in turn (between syncs, at a sync, across epochs): same bits, losses and row order."""
    whole = settings(objective, "whole", limit=limit, sync_every=sync_every)
    train(whole)
    for step in range(2, 13):
        broken = whole.replace(out=f"{whole.out}-{step}", checkpoint=CheckpointConfig(every=1, keep=1))
        with monkeypatch.context() as patch:
            stop_before(patch, step)
            with pytest.raises(Stop):
                train(broken)
        train(broken.replace(resume=True))
        assert_same_run(whole.out, broken.out)


def test_evaluation_does_not_change_training_and_is_restored(settings, monkeypatch, tmp_path: Path):
    """With and without held-out rows the training metrics are equal; a resumed run evaluates against the same starting policy."""
    held_out = EvalConfig(data=write_rows(tmp_path / "held.jsonl", "pair", 5, seed=9), every=5)
    plain, measured = settings(name="plain"), settings(name="measured", eval=held_out)
    train(plain)
    train(measured)
    stripped = [{name: value for name, value in row.items() if not name.startswith("eval_")} for row in lines(measured.out)]
    assert stripped == lines(plain.out)
    broken = measured.replace(out=measured.out + "-broken", checkpoint=CheckpointConfig(every=4))
    with monkeypatch.context() as patch:
        stop_before(patch, 7)
        with pytest.raises(Stop):
            train(broken)
    train(broken.replace(resume=True))
    assert_same_run(measured.out, broken.out)


def test_a_signal_saves_and_the_run_goes_on(settings):
    """SIGTERM during training: the step is finished, a checkpoint written, `Interrupted` names the way on."""
    whole, config = settings(name="whole"), settings(name="stopped")
    train(whole)
    real = Loop.step

    def signalled(self: Loop, t: int) -> dict:
        if t == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, t)

    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(Interrupted, match=r"stopped after step 5 of 12; saved .*step-000005") as caught,
    ):
        patch.setattr(Loop, "step", signalled)
        train(config)
    assert caught.value.signal == signal.SIGTERM
    train(config.replace(resume=True))
    assert_same_run(whole.out, config.out)


@pytest.mark.slow
def test_a_killed_process_resumes_to_the_same_bits(settings, tmp_path: Path):
    """SIGKILL at random moments, also while checkpoints are written: what is left resumes and ends equal to the whole run."""
    whole = settings(name="whole", steps=40)
    train(whole)
    config = whole.replace(out=str(tmp_path / "killed"), checkpoint=CheckpointConfig(every=1), resume=True)
    (tmp_path / "killed.yaml").write_text(configfile.dump(config))
    command = [sys.executable, "-m", "humanline", "train", str(tmp_path / "killed.yaml")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    metrics, rng = tmp_path / "killed" / "metrics.jsonl", random.Random(0)
    for goal in (6, 15, 27):
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            while process.poll() is None and (not metrics.exists() or len(metrics.read_text().splitlines()) < goal):
                time.sleep(0.002)
            time.sleep(rng.random() * 0.05)
            process.kill()
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "resuming" in finished.stdout
    assert_same_run(whole.out, config.out)


def test_R4_a_resume_with_other_settings_data_or_model_is_refused(settings, monkeypatch, tmp_path: Path):
    """Each difference is named; nothing is silently started afresh."""
    config = settings(checkpoint=CheckpointConfig(every=2))
    with monkeypatch.context() as patch:
        stop_before(patch, 6)
        with pytest.raises(Stop):
            train(config)
    again = config.replace(resume=True)
    with pytest.raises(CheckpointError, match=r"sync_every: 3 then, 1 now"):
        train(again.replace(sync_every=1))
    with pytest.raises(CheckpointError, match=r"objective.beta: 0.1 then, 0.5 now"):
        train(again.replace(objective=DPO(beta=0.5)))
    with pytest.raises(CheckpointError, match="was trained on other rows"):
        train(again.replace(data=write_rows(tmp_path / "other.jsonl", "pair", seed=5)))
    newest = checkpoint.path_of(Path(config.out), 4)
    (newest / "optimizer.safetensors").rename(newest / "elsewhere")
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors"):
        train(again)
    (newest / "elsewhere").rename(newest / "optimizer.safetensors")
    (newest / "reference.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="reference log-probs cannot be read"):
        train(again)


def test_a_checkpoint_of_another_model_is_refused(settings, monkeypatch, tmp_path: Path):
    config = settings(checkpoint=CheckpointConfig(every=2))
    with monkeypatch.context() as patch:
        stop_before(patch, 4)
        with pytest.raises(Stop):
            train(config)
    newest = checkpoint.path_of(Path(config.out), 2)
    tiny_llama(num_hidden_layers=1).save_pretrained(newest)
    with pytest.raises(CheckpointError, match="belongs to another model"):
        train(config.replace(resume=True))


def test_a_full_disk_is_reported_and_older_checkpoints_stay(settings, monkeypatch):
    """The second checkpoint meets "no space left": the error says so, the first one is complete, and resuming works."""
    whole, config = settings(name="whole"), settings(name="full", checkpoint=CheckpointConfig(every=3, keep=1))
    train(whole)
    real = Keeper.save_model

    def full(self: Keeper, folder: Path, weights: dict[str, torch.Tensor]) -> None:
        if "step-000006" in folder.name:
            (folder / "model.safetensors").write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(self, folder, weights)

    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "save_model", full)
        with pytest.raises(
            CheckpointError, match=r"step-000006 could not be written: .*No space left.*Earlier checkpoints are untouched"
        ):
            train(config)
    assert checkpoint.steps(Path(config.out)) == [3]
    assert sorted(entry.name for entry in (Path(config.out) / "checkpoints").iterdir()) == ["step-000003"]
    train(config.replace(resume=True))
    assert_same_run(whole.out, config.out)


def test_a_non_finite_step_saves_what_was_good(settings, monkeypatch):
    """Numbers that turn NaN at step 4: the run stops before the update and keeps a checkpoint of step 3."""
    whole, config = settings(name="whole"), settings(name="nan")
    train(whole)
    real = Loop._loss

    def broken(self: Loop, micro_batch, reference, kl, t):
        loss = real(self, micro_batch, reference, kl, t)
        return loss._replace(total=loss.total * float("nan")) if t == 4 else loss

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_loss", broken)
        with pytest.raises(TrainingError, match=r"step 4: loss nan.*data rows"):
            train(config)
    assert checkpoint.steps(Path(config.out)) == [3]
    train(config.replace(resume=True))
    assert_same_run(whole.out, config.out)
