"""Objectives on preference pairs.

P pairs · B = 2P sequences ordered (chosen, rejected, chosen, rejected, …) · T completion tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from humanline.data.rows import Kind
from humanline.objectives.base import Facts, Loss, Metrics, Objective, require, sequence_mean, sequence_sum, total


def chosen_rejected(values_B: Float[Tensor, "B"]) -> tuple[Float[Tensor, "P"], Float[Tensor, "P"]]:
    """Split per-sequence values into those of the chosen and of the rejected completions."""
    assert len(values_B) % 2 == 0, "sequences of pairs come in twos"
    return values_B[0::2], values_B[1::2]


def _pair_metrics(chosen_P: Tensor, rejected_P: Tensor, scale: float) -> Metrics:
    """Implicit rewards in the field's terms: accuracy counts a tie as one half."""
    margin_P = (chosen_P - rejected_P).detach()
    return {
        "reward_chosen": total(scale * chosen_P),
        "reward_rejected": total(scale * rejected_P),
        "reward_margin": total(scale * margin_P),
        "reward_accuracy": total((margin_P > 0).float() + 0.5 * (margin_P == 0).float()),
    }


@dataclass(frozen=True)
class DPO(Objective):
    """−log σ(β (R_w − R_l)),  R = Σ_t m_t r_t  (Rafailov et al. 2023, eq. 7; humanline: METHOD §3).

    With `label_smoothing` s it is cDPO: −(1 − s) log σ(h) − s log σ(−h), h = β (R_w − R_l). At the reference the loss is ln 2.
    """

    name: Literal["dpo"] = field(default="dpo", kw_only=True)
    beta: float = 0.1
    """inverse temperature per nat, > 0"""
    label_smoothing: float = 0.0
    """assumed share of flipped preferences, in [0, 0.5); 0 = plain DPO"""
    kind: ClassVar[Kind] = "pair"

    def __post_init__(self) -> None:
        require(0 < self.beta < math.inf, "beta", self.beta, "a finite number above 0, e.g. 0.1")
        require(0 <= self.label_smoothing < 0.5, "label_smoothing", self.label_smoothing, "a share in [0, 0.5)")

    def loss(self, ratio_BT: Float[Tensor, "B T"], facts: Facts) -> Loss:
        chosen_P, rejected_P = chosen_rejected(sequence_sum(ratio_BT, facts.mask_BT))
        logit_P = self.beta * (chosen_P - rejected_P)
        loss_P = -(1 - self.label_smoothing) * F.logsigmoid(logit_P) - self.label_smoothing * F.logsigmoid(-logit_P)
        return Loss(loss_P.sum(), _pair_metrics(chosen_P, rejected_P, self.beta))


@dataclass(frozen=True)
class IPO(Objective):
    """(R̄_w − R̄_l − 1/(2τ))²,  R̄ the mean of r_t over completion length (Azar et al. 2023, eq. 17; length-averaged as in TRL)."""

    name: Literal["ipo"] = field(default="ipo", kw_only=True)
    tau: float = 0.1
    """regularisation strength, > 0: the target margin is 1/(2τ) nats per token"""
    kind: ClassVar[Kind] = "pair"

    def __post_init__(self) -> None:
        require(0 < self.tau < math.inf, "tau", self.tau, "a finite number above 0, e.g. 0.1")

    def loss(self, ratio_BT: Float[Tensor, "B T"], facts: Facts) -> Loss:
        chosen_P, rejected_P = chosen_rejected(sequence_mean(ratio_BT, facts.mask_BT))
        loss_P = (chosen_P - rejected_P - 1 / (2 * self.tau)).square()
        return Loss(loss_P.sum(), _pair_metrics(chosen_P, rejected_P, self.tau))


@dataclass(frozen=True)
class SimPO(Objective):
    """−log σ(β (L̄_w − L̄_l) − γ),  L̄ the mean token log-prob (Meng et al. 2024, eq. 6). No reference, so no humanline variant."""

    name: Literal["simpo"] = field(default="simpo", kw_only=True)
    beta: float = 2.0
    """inverse temperature per nat, > 0"""
    margin: float = 1.0
    """γ, target reward margin, ≥ 0; 0 = off"""
    kind: ClassVar[Kind] = "pair"
    reference: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(0 < self.beta < math.inf, "beta", self.beta, "a finite number above 0, e.g. 2.0")
        require(0 <= self.margin < math.inf, "margin", self.margin, "a finite number from 0 on")

    def loss(self, ratio_BT: Float[Tensor, "B T"], facts: Facts) -> Loss:
        chosen_P, rejected_P = chosen_rejected(sequence_mean(ratio_BT, facts.mask_BT))
        loss_P = -F.logsigmoid(self.beta * (chosen_P - rejected_P) - self.margin)
        return Loss(loss_P.sum(), _pair_metrics(chosen_P, rejected_P, self.beta))
