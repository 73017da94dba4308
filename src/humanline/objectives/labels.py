"""Objectives on single completions with a binary label.

B sequences, one per group · T completion tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from humanline.data.rows import Kind
from humanline.objectives.base import Facts, Loss, Objective, require, sequence_sum, total


@dataclass(frozen=True)
class KTO(Objective):
    """desirable: λ_D (1 − σ(β (R − K))), undesirable: λ_U (1 − σ(β (K − R)))  (Ethayarajh et al. 2024, eq. 8).

    R = Σ_t m_t r_t; K = `facts.kl`, measured on mismatched pairs (x_i, y_j≠i) of the whole step, perceived like any other ratio,
    without gradient. The sum is divided by the number of rows, not by Σ λ. 1 − σ(x) is computed as σ(−x), which keeps its
    gradient where σ(x) rounds to 1.
    """

    name: Literal["kto"] = field(default="kto", kw_only=True)
    beta: float = 0.1
    """inverse temperature per nat, > 0"""
    desirable_weight: float = 1.0
    """λ_D, ≥ 0"""
    undesirable_weight: float = 1.0
    """λ_U, ≥ 0; the two should balance the classes: λ_D n_D / (λ_U n_U) within 1 … 4/3"""
    kind: ClassVar[Kind] = "label"
    mismatched: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(0 < self.beta < math.inf, "beta", self.beta, "a finite number above 0, e.g. 0.1")
        for name in ("desirable_weight", "undesirable_weight"):
            require(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "a finite number from 0 on")

    def loss(self, ratio_BT: Float[Tensor, "B T"], facts: Facts) -> Loss:
        sum_B = sequence_sum(ratio_BT, facts.mask_BT)
        desirable_B = facts.feedback_B > 0.5
        loss_B = torch.sigmoid(self.beta * torch.where(desirable_B, facts.kl - sum_B, sum_B - facts.kl))
        loss_B = torch.where(desirable_B, self.desirable_weight * loss_B, self.undesirable_weight * loss_B)
        reward_B = self.beta * sum_B
        return Loss(
            loss_B.sum(),
            {
                "reward_desirable": total(reward_B, desirable_B),
                "reward_undesirable": total(reward_B, ~desirable_B),
                "desirable_share": total(desirable_B),
            },
        )
