"""Drawing tokens: one random stream per completion, and draws that a batch's rounding hardly ever changes.

B sequences · V vocabulary · D binary digits of a token id.

A token is drawn by the digits of its id, the highest first: a digit is 1 with the share of mass that ids with this digit 1 have
among those that begin with the digits already drawn. By the chain rule that is the exact distribution, at one uniform number a
digit. It differs from an inverse CDF over the whole vocabulary in what rounding does: there, noise ε in the logits moves V
boundaries, and draws among unlikely tokens change with it (a share of about Σ_v min(p_v, ε)); here at most D shares move, each
by at most ε/2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from humanline import randomness

BLOCK = 32
"""tokens whose uniform numbers are drawn at once"""


def digits(vocabulary: int) -> int:
    """D: binary digits of the largest token id, at least 1."""
    return max(1, (vocabulary - 1).bit_length())


class Streams:
    """Uniform numbers for several completions: what each gets depends on (seed, prompt number, completion number) alone."""

    def __init__(self, seed: int, places: Sequence[tuple[int, int]], vocabulary: int) -> None:
        """places: (prompt number, completion number) of each sequence."""
        self._generators = [randomness.generator(seed, "sample", *place) for place in places]
        self._digits = digits(vocabulary)
        self._block_BTD = np.empty((len(places), 0, self._digits))
        self._used = 0

    def next(self) -> Float[np.ndarray, "B D"]:
        """float64 in [0, 1) for one more token of each sequence."""
        if self._used == self._block_BTD.shape[1]:
            self._block_BTD = np.stack([generator.random((BLOCK, self._digits)) for generator in self._generators])
            self._used = 0
        self._used += 1
        return self._block_BTD[:, self._used - 1]

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these sequences only."""
        self._generators = [self._generators[row] for row in rows]
        self._block_BTD = self._block_BTD[list(rows)]


def transformed(logits_BV: Float[Tensor, "B V"], temperature: float, top_p: float) -> Float[Tensor, "B V"]:
    """float64 log-probs after temperature, then top_p, renormalised; −inf outside the nucleus.

    The nucleus is the smallest set of most likely tokens whose mass reaches `top_p`. Temperature 0 leaves one token.
    """
    if temperature == 0:
        best_B1 = logits_BV.argmax(-1, keepdim=True)
        return torch.full_like(logits_BV, -torch.inf, dtype=torch.float64).scatter(-1, best_B1, 0.0)
    logp_BV = (logits_BV.double() / temperature).log_softmax(-1)
    if top_p == 1:
        return logp_BV
    sorted_BV, order_BV = logp_BV.sort(dim=-1, descending=True, stable=True)
    mass_BV = sorted_BV.exp()
    outside_BV = mass_BV.cumsum(-1) - mass_BV >= top_p
    outside_BV[:, 0] = False
    logp_BV = logp_BV.masked_fill(torch.zeros_like(outside_BV).scatter(-1, order_BV, outside_BV), -torch.inf)
    return logp_BV - logp_BV.logsumexp(-1, keepdim=True)


def draw(logp_BV: Float[Tensor, "B V"], uniform_BD: Float[Tensor, "B D"]) -> Int[Tensor, "B"]:
    """A token of each row; one of probability 0 never."""
    mass_BV = torch.nn.functional.pad(logp_BV.exp(), (0, 2 ** uniform_BD.shape[-1] - logp_BV.shape[-1]))
    levels = [mass_BV]
    while levels[-1].shape[-1] > 2:
        levels.append(levels[-1].unflatten(-1, (-1, 2)).sum(-1))
    token_B = torch.zeros(len(logp_BV), dtype=torch.int64, device=logp_BV.device)
    for level_BN, uniform_B in zip(reversed(levels), uniform_BD.unbind(-1), strict=True):
        zero_B = level_BN.gather(-1, 2 * token_B[:, None])[:, 0]
        one_B = level_BN.gather(-1, 2 * token_B[:, None] + 1)[:, 0]
        token_B = 2 * token_B + (uniform_B * (zero_B + one_B) >= zero_B)
    return token_B
