"""Task "score": a hidden utility of (prompt, completion) that no rule of the text reveals, like taste.

N rows · P = 4 prompt symbols · T = 12 completion symbols · V = 18 symbols · J = T − 1 bigrams.

    utility(x, y) = (mean_j W[y_j, y_j+1] + mean_i,t A[x_i, y_t]) × (distinct bigrams of y) / J

W ~ N(0, 1) scores neighbouring symbols, A ~ 0.7·N(0, 1) makes the answer depend on the prompt, the last factor forbids repeating
one good bigram for ever. Prompts and the start model's training texts come from a bigram chain: softmax of 1.2·N(0, 1) over the
next symbol, the first one uniform.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from humanline.randomness import generator

SYMBOLS = "abcdefghijklmnopqr"
PROMPT_LENGTH = 4
COMPLETION_LENGTH = 12
BIGRAM_SCALE, AFFINITY_SCALE, CHAIN_SCALE = 1.0, 0.7, 1.2
"""standard deviations of the entries of W, of A, and of the chain's logits"""


def to_ids(texts: Sequence[str]) -> Int[Tensor, "N T"]:
    """Symbol numbers of texts of equal length; they are the ids of the packaged tokenizer, too."""
    wrong = [text for text in texts if not set(text) <= set(SYMBOLS)]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no text of task score: expected only the symbols {SYMBOLS[0]} … {SYMBOLS[-1]}.")
    codes_NT = np.array([list(text.encode()) for text in texts], dtype=np.int64) - ord(SYMBOLS[0])
    return torch.from_numpy(codes_NT)


def to_texts(ids_NT: Int[Tensor, "N T"]) -> list[str]:
    """The inverse of `to_ids`."""
    return ["".join(SYMBOLS[symbol] for symbol in row) for row in ids_NT.tolist()]


@dataclass(frozen=True)
class ScoreTask:
    """The utility, and the chain that texts are drawn from."""

    bigram_VV: Float[Tensor, "V V"]
    """W[a, b]: worth of b right after a"""
    affinity_VV: Float[Tensor, "V V"]
    """A[x, y]: worth of y anywhere in the completion when x is in the prompt"""
    chain_VV: Float[Tensor, "V V"]
    """probability of the next symbol; rows sum to 1"""

    @classmethod
    def draw(cls, seed: int) -> ScoreTask:
        """The task of a seed, float64."""
        shape = (len(SYMBOLS), len(SYMBOLS))
        bigram_VV = BIGRAM_SCALE * torch.from_numpy(generator(seed, "score bigram").standard_normal(shape))
        affinity_VV = AFFINITY_SCALE * torch.from_numpy(generator(seed, "score affinity").standard_normal(shape))
        logits_VV = CHAIN_SCALE * torch.from_numpy(generator(seed, "score chain").standard_normal(shape))
        return cls(bigram_VV, affinity_VV, logits_VV.softmax(-1))

    def utility(self, prompt_NP: Int[Tensor, "N P"], completion_NT: Int[Tensor, "N T"]) -> Float[Tensor, "N"]:
        """Utility of each row, float64, about 0 for random text and 2 for very good text."""
        bigram_N = self.bigram_VV[completion_NT[:, :-1], completion_NT[:, 1:]].mean(-1)
        affinity_N = self.affinity_VV[prompt_NP[:, :, None], completion_NT[:, None, :]].mean((1, 2))
        pairs_NJ = (completion_NT[:, :-1] * len(SYMBOLS) + completion_NT[:, 1:]).sort(-1).values
        distinct_N = 1 + (pairs_NJ.diff(dim=-1) != 0).sum(-1)
        return (bigram_N + affinity_N) * distinct_N / pairs_NJ.shape[-1]

    def draw_texts(self, stream: np.random.Generator, rows: int, length: int) -> Int[Tensor, "N T"]:
        """Texts of the chain: first symbol uniform, then one step of the chain each."""
        uniform_NT = torch.from_numpy(stream.random((rows, length)))
        symbol_N = (uniform_NT[:, 0] * len(SYMBOLS)).long()
        symbols = [symbol_N]
        for step in range(1, length):
            symbol_N = inverse_cdf(self.chain_VV[symbol_N], uniform_NT[:, step])
            symbols.append(symbol_N)
        return torch.stack(symbols, dim=-1)


def inverse_cdf(probability_NV: Float[Tensor, "N V"], uniform_N: Float[Tensor, "N"]) -> Int[Tensor, "N"]:
    """The symbol v with F(v − 1) ≤ u < F(v); exact for u in [0, 1) whatever the rounding of the last F."""
    cumulative_NV = probability_NV.cumsum(-1)
    return (cumulative_NV <= uniform_N[:, None] * cumulative_NV[:, -1:]).sum(-1).clamp(max=probability_NV.shape[-1] - 1)
