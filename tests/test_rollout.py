"""Fresh data inside a run: S is a number, windows are exact, and a resumed window holds the very same samples."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from builders import completion, save_model
from humanline.arrange import arrange
from humanline.config import CheckpointConfig, DataConfig, LogConfig, OptimizerConfig, RolloutConfig, TrainConfig
from humanline.data.rows import EncodedGroup, Place
from humanline.errors import CheckpointError, ConfigError, TrainingError
from humanline.limit import Clip, Off
from humanline.loop import Loop
from humanline.objectives import DPO, GRPO, KTO, SFT, Objective
from humanline.run import train
from humanline.sample.settings import SampleConfig
from humanline.score.config import Function
from runs import Stop, assert_same_run, lines, stop_before

REWARDS = '''
def letters(prompt, completion):
    """Share of the letter e, which any policy can learn to write more of."""
    return completion.count("e") / 8

def sometimes(prompt, completion):
    return None if "e" in completion else 1.0

def nothing(prompt, completion):
    return 1.0
'''


@pytest.fixture
def settings(tmp_path: Path):
    """A run of 8 steps of 3 prompts × 4 completions of at most 8 tokens."""
    model = save_model(tmp_path / "model")
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"{n}: say it "}) + "\n" for n in range(7)))

    def make(objective: Objective = GRPO(), name: str = "run", reward: str = "letters", **changes: object) -> TrainConfig:
        values: dict[str, object] = dict(
            model=model,
            data=str(tmp_path / "prompts.jsonl"),
            out=str(tmp_path / name),
            objective=objective,
            sample_every=4,
            steps=8,
            batch_size=3,
            device="cpu",
            rollout=RolloutConfig(
                sample=SampleConfig(n=4, max_new_tokens=8),
                scorers=(Function(path=f"{tmp_path / 'rewards.py'}:{reward}"),),
            ),
            rows=DataConfig(max_length=60),
            optimizer=OptimizerConfig(lr=1e-2, warmup=0),
            checkpoint=CheckpointConfig(every=None),
            log=LogConfig(every=0, report=False),
        )
        return TrainConfig(**(values | changes))

    return make


VARIANTS = {
    "grpo online": (GRPO(), Off(), None, 1),
    "grpo sparse": (GRPO(), Off(), None, 4),
    "grpo sparse, kl": (GRPO(beta=0.1), Off(), None, 4),
    "grpo sparse, humanline": (GRPO(beta=0.1), Clip(), 3, 4),
    "dpo sparse": (DPO(), Off(), None, 3),
    "kto sparse, humanline": (KTO(), Clip(), 2, 3),
    "sft on the best": (SFT(), Off(), None, 4),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_resuming_at_every_step_of_every_window_gives_the_same_bits(settings, monkeypatch, variant: str):
    objective, limit, sync_every, sample_every = VARIANTS[variant]
    whole = settings(objective, "whole", limit=limit, sync_every=sync_every, sample_every=sample_every)
    train(whole)
    for step in (2, 4, 5, 8):
        broken = whole.replace(out=f"{whole.out}-{step}", checkpoint=CheckpointConfig(every=1, keep=1))
        with monkeypatch.context() as patch:
            stop_before(patch, step)
            with pytest.raises(Stop):
                train(broken)
        train(broken.replace(resume=True))
        assert_same_run(whole.out, broken.out)


def test_a_window_is_sampled_from_the_policy_of_its_moment_and_kept(settings):
    """S = 4, 8 steps: two windows (an epoch of 7 prompts has steps of 3, 3 and 1) are in RUN/rollouts, with draws of their own."""
    config = settings()
    train(config)
    files = sorted((Path(config.out) / "rollouts").glob("*.jsonl"))
    assert [file.name for file in files] == ["step-000001.jsonl", "step-000005.jsonl"]
    first, second = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
    assert {row["step"] for row in first} == {1, 2, 3, 4} and {row["step"] for row in second} == {5, 6, 7, 8}
    assert all(len(row["completions"]) == 4 for row in first)
    turns = {(row["prompt"], tuple(map(tuple, row["completion_ids"]))) for row in [*first, *second]}
    assert len(turns) == len(first) + len(second)
    expected = [text.count("e") / 8 for row in first for text in row["completions"]]
    assert [reward for row in first for reward in row["rewards"]] == pytest.approx(expected)


def test_online_training_finds_the_reward(settings):
    """Eight fresh windows raise the share of e; the samples of a frozen policy would not."""
    config = settings(sample_every=1, steps=30, batch_size=7, optimizer=OptimizerConfig(lr=1e-2, warmup=0))
    train(config)
    rewards = [row["rollout_reward"] for row in lines(config.out)]
    assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.1


@pytest.mark.parametrize(("sync_every", "ages"), [(3, [0, 1, 2, 1, 0, 1, 1, 2]), (1, [0, 1, 1, 1, 0, 1, 1, 1])])
def test_new_data_re_syncs_the_reference(settings, sync_every: int, ages: list[int]):
    """S = 4: at steps 1 and 5 data arrives and the reference is the policy itself (age 0); in between it syncs every k steps."""
    config = settings(GRPO(beta=0.1), limit=Clip(), sync_every=sync_every)
    train(config)
    rows = lines(config.out)
    assert [row["reference_age"] for row in rows] == ages
    assert rows[0]["log_ratio_std"] == rows[4]["log_ratio_std"] == 0.0
    assert rows[1]["log_ratio_std"] > 0


def test_plain_grpo_uses_the_sampler_s_log_probs_and_no_second_model(settings, monkeypatch):
    """β = 0: no scoring pass at all; the ratio of a window's first step is 1 up to the sampler's rounding."""
    scored: list[int] = []
    real = Loop.score
    monkeypatch.setattr(Loop, "score", lambda self, *a, **k: (scored.append(1), real(self, *a, **k))[1])
    config = settings()
    train(config)
    rows = lines(config.out)
    assert not scored and "reference_age" not in rows[0]
    assert rows[0]["log_ratio_std"] < 1e-5 and rows[4]["log_ratio_std"] < 1e-5 < rows[1]["log_ratio_std"]


def test_R10_the_ratio_is_exact_at_any_sampling_temperature(settings):
    """Drawn at temperature 0.6 and top-p 0.9, kept log-probs are the policy's own, so the first ratio of a window is 1, not 2."""
    config = settings()
    sampling = SampleConfig(n=4, max_new_tokens=8, temperature=0.6, top_p=0.9)
    train(config.replace(rollout=dataclasses.replace(config.rollout, sample=sampling)))
    assert lines(config.out)[0]["log_ratio_std"] < 1e-5


def test_a_kl_term_is_taken_against_the_starting_policy(settings):
    """β > 0 without syncing: KL is 0 at step 1 and not at step 5, where fresh data has a ratio of 1 but the policy has moved."""
    config = settings(GRPO(beta=0.1))
    train(config)
    rows = lines(config.out)
    assert rows[0]["kl"] < 1e-9 < rows[4]["kl"] and rows[4]["log_ratio_std"] < 1e-5


def test_R26_an_unscored_completion_takes_no_part(settings):
    """Completions with an e have no score: they are counted, stay null, and every number stays finite."""
    config = settings(reward="sometimes")
    train(config)
    rows = lines(config.out)
    assert rows[0]["rollout_unscored"] > 0 and all(math.isfinite(row["loss"]) for row in rows)
    text = (Path(config.out) / "rollouts" / "step-000001.jsonl").read_text()
    assert "null" in text


def test_a_window_without_any_difference_in_reward_says_so_for_pairs(settings):
    with pytest.raises(TrainingError, match=r"steps 1 to 4: none of the 10 groups can be trained on"):
        train(settings(DPO(), reward="nothing"))


def test_lost_rollouts_are_an_error_at_resume(settings, monkeypatch):
    config = settings(checkpoint=CheckpointConfig(every=1, keep=1))
    with monkeypatch.context() as patch:
        stop_before(patch, 3)
        with pytest.raises(Stop):
            train(config)
    (Path(config.out) / "rollouts" / "step-000001.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"step-000001.jsonl cannot be read.*Step 3 trains on these samples"):
        train(config.replace(resume=True))


def test_settings_that_contradict_fresh_data_are_refused(settings):
    config = settings()
    for changes, message in (
        (dict(rollout=RolloutConfig()), "rollout.scorers is empty"),
        (dict(rows=DataConfig(max_length=8)), "rows.max_length is 8: expected more than rollout.sample.max_new_tokens"),
        (dict(reference_cache="cache"), "reference_cache is cache while sample_every is set"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(config.replace(**changes))


def test_what_objectives_get_of_a_group():
    """Rewards 1, 3, unscored, 3, 0: best 3 (the first) against worst 0; labels from the mean 1.75 on; the best alone."""
    rewards = [1.0, 3.0, math.nan, 3.0, 0.0]
    group = EncodedGroup(
        "group", np.array([1], np.int32), tuple(completion([n], r) for n, r in enumerate(rewards)), Place("x", 1)
    )
    (pair,) = arrange("pair", finished_only=False)(group)
    assert [(c.ids.tolist(), c.feedback) for c in pair.completions] == [([1], 1.0), ([4], 0.0)]
    labels = arrange("label", finished_only=False)(group)
    assert [(g.completions[0].ids.tolist(), g.completions[0].feedback) for g in labels] == [
        ([0], 0),
        ([1], 1),
        ([3], 1),
        ([4], 0),
    ]
    (best,) = arrange("chat", finished_only=False)(group)
    assert best.completions[0].ids.tolist() == [1]
    assert arrange("group", finished_only=False)(group) == [group]
