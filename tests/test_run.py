"""`train`: a run directory from files."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from builders import VOCABULARY, save_model, tiny_llama
from humanline import checkpoint, configfile
from humanline.config import CheckpointConfig, EvalConfig, LogConfig
from humanline.errors import CheckpointError, DataError, ModelError
from humanline.limit import Clip, Off
from humanline.loop import Loop
from humanline.run import train
from runs import assert_same_run, lines, weights, write_rows

pytest_plugins = ("run_fixtures",)


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


def test_eval_fraction_holds_rows_out(settings, capsys):
    train(settings(eval=EvalConfig(fraction=0.2)))
    assert "held out 3 rows of 3 prompts for evaluation, 11 rows of 11 prompts left to train on" in capsys.readouterr().out


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
