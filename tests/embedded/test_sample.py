"""Sampling: the same set whatever the batch size, from the model's own distribution."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from humanline.embedded import assets
from humanline.embedded.evaluate import evaluate, win_rate
from humanline.embedded.sample import sample
from humanline.embedded.score import SYMBOLS
from humanline.randomness import generator


@pytest.fixture(scope="module")
def start_model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(assets.MODEL, dtype=torch.float32)


def test_R44_same_set_whatever_the_batch_size(start_model: PreTrainedModel) -> None:
    """70 prompts in one batch, in batches that do not divide them, and one by one."""
    prompt_NP = assets.held_out(70).prompt_NP
    sets = [sample(start_model, prompt_NP, length=12, stream=generator(3, "draws"), batch_size=size) for size in (70, 32, 1)]
    assert sets[0].shape == (70, 12)
    assert torch.equal(sets[0], sets[1]) and torch.equal(sets[0], sets[2])


def test_R44_a_row_keeps_its_completion_when_rows_are_added_after_it(start_model: PreTrainedModel) -> None:
    prompt_NP = assets.held_out(20).prompt_NP
    few = sample(start_model, prompt_NP[:5], length=6, stream=generator(3, "draws"))
    assert torch.equal(few, sample(start_model, prompt_NP, length=6, stream=generator(3, "draws"))[:5])


def test_samples_follow_the_model(start_model: PreTrainedModel) -> None:
    """The first symbol after one prompt, 4000 times: every share within 5 standard errors of the model's probability."""
    prompt_NP = assets.held_out(1).prompt_NP.expand(4000, -1)
    first_N = sample(start_model, prompt_NP, length=1, stream=generator(1, "draws"))[:, 0]
    with torch.no_grad():
        expected_V = start_model(prompt_NP[:1]).logits[0, -1].double().softmax(-1)
    share_V = torch.bincount(first_N, minlength=len(SYMBOLS)) / len(first_N)
    assert ((share_V - expected_V).abs() < 5 * (expected_V * (1 - expected_V) / len(first_N)).sqrt()).all()


def test_sampling_leaves_the_model_as_it_was(start_model: PreTrainedModel) -> None:
    before = {name: value.clone() for name, value in start_model.state_dict().items()}
    sample(start_model.train(), assets.held_out(2).prompt_NP, length=3, stream=generator(0, "draws"))
    assert start_model.training and start_model.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in start_model.state_dict().items())


def test_win_rate_counts_a_tie_one_half() -> None:
    """Wins 1, ties 1, losses 2 of 4: (1 + 0.5) / 4."""
    assert win_rate(torch.tensor([2.0, 1.0, 0.0, -1.0]), torch.tensor([1.0, 1.0, 0.5, 0.0])) == 0.375


def test_start_model_is_worth_what_the_manifest_says_and_wins_half_the_time(start_model: PreTrainedModel) -> None:
    """Fresh draws on all 1500 prompts; standard error of the mean utility 0.3/√1500 = 0.008, of the win rate 0.013."""
    quality = evaluate(start_model, assets.task(), assets.held_out(), seed=5)
    assert quality.utility == pytest.approx(assets.manifest()["held_out"]["start_utility"], abs=4 * 0.008 * 2**0.5)
    assert quality.win_rate == pytest.approx(0.5, abs=4 * 0.013)
