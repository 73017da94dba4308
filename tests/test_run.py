"""`train`: a run directory from files, and going on after a stop as if it had never happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from builders import VOCABULARY, save_model, tiny_llama
from humanline import checkpoint, configfile
from humanline.config import CheckpointConfig, EvalConfig, LogConfig, OptimizerConfig, TrainConfig
from humanline.errors import CheckpointError, DataError, Interrupted, ModelError, TrainingError
from humanline.keeper import Keeper
from humanline.limit import Clip, Off, Reject
from humanline.loop import Loop
from humanline.objectives import DPO, GRPO, KTO, SFT, Objective
from humanline.run import train

WORDS = ["so", "be it", "3+4=7", "no.", "a b c", "why", "1/2", "ok then", "yes, yes", "x"]


def write_rows(path: Path, kind: str, count: int = 14, seed: int = 0) -> str:
    """Rows of uneven lengths in the plainest shape of their kind."""
    rng = random.Random(seed)

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 4)))

    rows = []
    for number in range(count):
        prompt = f"{number}: {text()} "
        if kind == "pair":
            rows.append({"prompt": prompt, "chosen": text(), "rejected": text()})
        elif kind == "label":
            rows.append({"prompt": prompt, "completion": text(), "label": rng.random() < 0.5})
        elif kind == "group":
            rows.append(
                {"prompt": prompt, "completions": [text() for _ in range(3)], "rewards": [rng.random() for _ in range(3)]}
            )
        else:
            rows.append({"prompt": prompt, "completion": text()})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


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


def lines(out: str | Path) -> list[dict]:
    """metrics.jsonl without what depends on the clock."""
    rows = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in ("seconds", "tokens_per_second")} for row in rows]


def weights(out: str | Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(Path(out) / "final").state_dict()


def assert_same_run(first: str | Path, second: str | Path) -> None:
    """Equal metrics and equal weights, bit for bit."""
    assert lines(first) == lines(second)
    ours, theirs = weights(first), weights(second)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


class Stop(Exception):
    """The test pulls the plug."""


def stop_before(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the process die at the beginning of a step."""
    real = Loop.step

    def fragile(self: Loop, t: int) -> dict:
        if t == step:
            raise Stop
        return real(self, t)

    monkeypatch.setattr(Loop, "step", fragile)


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


def test_a_run_directory_holds_what_it_promises(settings, tmp_path: Path):
    """config.yaml loads back, a metrics line per step, newest checkpoints only, final/ loads and generates in transformers."""
    config = settings(
        checkpoint=CheckpointConfig(every=4, keep=1), eval=EvalConfig(data=write_rows(tmp_path / "held.jsonl", "pair", 5, seed=9))
    )
    result = train(config)
    run = Path(config.out)
    assert configfile.load_config(run / "config.yaml") == config
    rows = lines(run)
    assert [row["step"] for row in rows] == list(range(1, 13)) and result.steps == 12
    assert {"loss", "grad_norm", "lr", "clipped_low", "clipped_high", "log_ratio_std", "reference_age", "tokens"} <= rows[
        0
    ].keys()
    assert [row["reference_age"] for row in rows] == [0, 1, 2, 1, 2, 3, 1, 2, 3, 1, 2, 3]
    assert "eval_loss" in rows[-1] and "eval_reward_accuracy" in rows[-1] and "eval_loss" not in rows[0]
    assert checkpoint.steps(run) == [8]
    policy, tokenizer = AutoModelForCausalLM.from_pretrained(run / "final"), AutoTokenizer.from_pretrained(run / "final")
    ids = tokenizer("3+4=", return_tensors="pt").input_ids
    assert policy.generate(ids, max_new_tokens=5, do_sample=False).shape[1] > ids.shape[1]
    assert any(not torch.equal(value, tiny_llama().state_dict()[name]) for name, value in policy.state_dict().items())


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


def test_eval_fraction_holds_rows_out(settings, capsys):
    train(settings(eval=EvalConfig(fraction=0.2)))
    assert "held out 3 rows of 3 prompts for evaluation, 11 rows of 11 prompts left to train on" in capsys.readouterr().out


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


def test_a_directory_with_a_run_is_not_overwritten(settings):
    config = settings(steps=1)
    train(config)
    with pytest.raises(CheckpointError, match=r"is not empty \(config.yaml, final, metrics.jsonl.*Add --resume"):
        train(config)


def test_two_runs_on_one_directory_are_refused(settings):
    config = settings(steps=1)
    inside: list[str] = []
    real = Loop.step

    def nested(self: Loop, t: int) -> dict:
        with pytest.raises(CheckpointError, match=r"in use by another process"):
            train(config)
        inside.append("tried")
        return real(self, t)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "step", nested)
        train(config)
    assert inside == ["tried"]


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


def test_R32_reference_log_probs_are_reused_by_content_and_change_nothing(settings, monkeypatch, tmp_path: Path):
    """A cache filled on 14 rows serves a shuffled run on other rows of the same file; values equal live ones to 1e-5."""
    plain = settings(limit=Off(), sync_every=None, name="live")
    cached = plain.replace(out=str(tmp_path / "first"), reference_cache=str(tmp_path / "cache"))
    train(plain)
    train(cached)
    assert_same_run(plain.out, cached.out)
    scored: list[int] = []
    real = Loop.score

    def counting(self: Loop, micro_batches, module=None):
        scored.append(sum(len(micro_batch.sequences) for micro_batch in micro_batches))
        return real(self, micro_batches, module)

    second = cached.replace(out=str(tmp_path / "second"), seed=7, rows=replace(cached.rows, limit_rows=6))
    live = second.replace(out=str(tmp_path / "live-second"), reference_cache=None)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "score", counting)
        train(second)
    assert sum(scored) == 6  # step 1 only: its 3 pairs are scored in the shape they are trained in
    train(live)
    for ours, theirs in zip(lines(second.out), lines(live.out), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    other_model = save_model(tmp_path / "other", tiny_llama(seed=5))
    train(cached.replace(out=str(tmp_path / "third"), model=other_model))
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_bfloat16_autocast_trains_and_step_1_is_exact(settings):
    """Log-ratios are float32 differences of equal numbers at step 1, under autocast too."""
    config = settings(limit=Clip())
    config = config.replace(load=replace(config.load, autocast="bfloat16"))
    train(config)
    rows = lines(config.out)
    assert rows[0]["log_ratio_std"] == 0.0 and rows[0]["loss"] == pytest.approx(0.6931472, abs=1e-6)
    assert all(value.dtype == torch.float32 for value in weights(config.out).values())


def test_gradient_checkpointing_changes_no_number(settings):
    plain = settings(name="plain", steps=4)
    train(plain)
    again = plain.replace(out=plain.out + "-checkpointed", load=replace(plain.load, gradient_checkpointing=True))
    train(again)
    assert [row["loss"] for row in lines(plain.out)] == pytest.approx([row["loss"] for row in lines(again.out)], abs=1e-6)


def test_tensorboard_gets_every_step(settings):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = settings(steps=3, log=LogConfig(every=0, trackers=("tensorboard",), report=False))
    train(config)
    events = event_accumulator.EventAccumulator(str(next(Path(config.out).rglob("events.out*")).parent))
    events.Reload()
    assert [round(event.value, 5) for event in events.Scalars("loss")] == [round(row["loss"], 5) for row in lines(config.out)]


def test_signals_are_left_alone_outside_the_main_thread(settings):
    """A run in a thread cannot install handlers, and works without."""
    outcome: list[object] = []
    thread = threading.Thread(target=lambda: outcome.append(train(settings(steps=1)).steps))
    thread.start()
    thread.join()
    assert outcome == [1]


def test_a_model_with_a_smaller_vocabulary_or_too_few_positions_is_refused(settings, tmp_path: Path):
    small = save_model(tmp_path / "small", tiny_llama(vocab_size=VOCABULARY - 20))
    with pytest.raises(ModelError, match=r"pair.jsonl:\d+: token id \d+, but the model's vocabulary ends at 29"):
        train(settings(model=small))
    short = save_model(tmp_path / "short", tiny_llama(max_position_embeddings=8))
    with pytest.raises(ModelError, match=r"pair.jsonl:\d+: \d+ tokens, but the model has 8 positions. Set --rows.max-length 8"):
        train(settings(model=short, name="short-run"))


def test_wrong_rows_and_missing_models_leave_no_run_behind(settings, tmp_path: Path):
    """A failed start can be repeated at once: the directory holds nothing that blocks it."""
    labels = write_rows(tmp_path / "label.jsonl", "label")
    config = settings()
    with pytest.raises(DataError, match=r"label.jsonl:1"):
        train(config.replace(data=labels))
    with pytest.raises(ModelError, match=r"no-such-model"):
        train(config.replace(model=str(tmp_path / "no-such-model")))
    train(config.replace(steps=1))
