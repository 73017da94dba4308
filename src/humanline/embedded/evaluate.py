"""How good a trained model is at task "score": mean utility, and how often its answer beats the start model's.

N held-out prompts · T completion symbols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from humanline.embedded.assets import HeldOut
from humanline.embedded.sample import sample
from humanline.embedded.score import COMPLETION_LENGTH, ScoreTask
from humanline.randomness import generator

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor
    from transformers import PreTrainedModel


class Quality(NamedTuple):
    """Of one model on the held-out prompts, one completion each at T = 1."""

    utility: float
    """mean"""
    win_rate: float
    """share of prompts where its completion is worth more than the start model's; a tie counts one half"""


def win_rate(utility_N: Float[Tensor, "N"], other_N: Float[Tensor, "N"]) -> float:
    """Share of rows where the first is higher, ties one half."""
    return ((utility_N > other_N).double() + 0.5 * (utility_N == other_N).double()).mean().item()


def evaluate(model: PreTrainedModel, task: ScoreTask, held_out: HeldOut, *, seed: int) -> Quality:
    """Sample with draws of that seed, and measure. The same seed gives the same draws to every method."""
    stream = generator(seed, "score evaluation")
    completion_NT = sample(model, held_out.prompt_NP, length=COMPLETION_LENGTH, stream=stream)
    utility_N = task.utility(held_out.prompt_NP, completion_NT)
    assert torch.isfinite(utility_N).all()
    return Quality(utility_N.mean().item(), win_rate(utility_N, held_out.utility_N))
