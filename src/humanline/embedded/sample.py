"""Sampling completions of a fixed length at temperature 1, the same set whatever the batch size.

N rows · P prompt tokens · T completion tokens · V vocabulary.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from humanline.embedded.score import inverse_cdf


class InverseCDF(LogitsProcessor):
    """Turns greedy decoding into sampling with given uniform numbers: all logits but that of the drawn token become −inf."""

    def __init__(self, uniform_NT: Tensor, prompt_length: int) -> None:
        self.uniform_NT = uniform_NT
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        position = input_ids.shape[-1] - self.prompt_length
        token_N = inverse_cdf(scores.double().softmax(-1), self.uniform_NT[:, position])
        return torch.full_like(scores, -torch.inf).scatter(-1, token_N[:, None], 0.0)


@torch.no_grad()
def sample(
    model: PreTrainedModel, prompt_NP: Int[Tensor, "N P"], *, length: int, stream: np.random.Generator, batch_size: int = 512
) -> Int[Tensor, "N T"]:
    """Draw `length` tokens after each prompt by inverse CDF, one uniform number per (row, position).

    All numbers are drawn before the first batch, and the model runs in float64, so that no rounding that depends on the batch
    decides between two tokens. There is no end-of-sequence token: every completion has exactly `length` tokens.
    """
    uniform_NT = torch.from_numpy(stream.random((len(prompt_NP), length)))
    exact = copy.deepcopy(model).double().eval()
    settings = GenerationConfig(max_new_tokens=length, do_sample=False, eos_token_id=None, pad_token_id=0)
    batches = []
    for start in range(0, len(prompt_NP), batch_size):
        rows = slice(start, start + batch_size)
        draw = LogitsProcessorList([InverseCDF(uniform_NT[rows], prompt_NP.shape[-1])])
        mask_NP = torch.ones_like(prompt_NP[rows])
        ids = exact.generate(prompt_NP[rows], attention_mask=mask_NP, generation_config=settings, logits_processor=draw)
        batches.append(ids[:, prompt_NP.shape[-1] :])
    return torch.cat(batches)
