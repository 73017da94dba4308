"""Perception of token log-ratios: what the objective gets to see of log π_θ(y_t) − log π_ref(y_t).

B sequences · T completion tokens.  mask_BT: True = the token counts.
A limiter is chosen once and composed with any objective; no objective knows which one ran.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from humanline.errors import ConfigError


class Perceived(NamedTuple):
    """Log-ratios after the limiter, and which tokens it stopped."""

    ratio_BT: Tensor
    """float32 nats; no gradient flows through a stopped token"""
    low_BT: Tensor
    """bool, stopped because the policy's probability fell too far below the reference's"""
    high_BT: Tensor
    """bool, stopped because it rose too far above"""


@dataclass(frozen=True)
class Off:
    """Log-ratios pass unchanged: the plain objective."""

    name: Literal["off"] = field(default="off", kw_only=True)
    draws: ClassVar[int] = 0

    def __call__(
        self, ratio_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"], uniform_2BT: Tensor | None = None
    ) -> Perceived:
        """Identity; nothing is stopped."""
        nothing_BT = torch.zeros_like(mask_BT)
        return Perceived(ratio_BT, nothing_BT, nothing_BT)


@dataclass(frozen=True)
class Clip:
    """Humanline clipping: r_t = clamp(log π_θ(y_t) − log π_ref(y_t), low, high), gradient exactly 0 outside (METHOD §3).

    Per token, never on the sum. `low = log ε_P`, `high = log ε_R` of the paper; infinite bounds are the plain objective.
    """

    name: Literal["clip"] = field(default="clip", kw_only=True)
    low: float = -1.5
    """nats, < 0; -.inf = no lower bound"""
    high: float = 1.5
    """nats, > 0; .inf = no upper bound"""
    draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not self.low < 0:
            raise ConfigError(f"limit.low is {self.low}: expected nats below 0 (the log of a probability ratio), e.g. -1.5.")
        if not self.high > 0:
            raise ConfigError(f"limit.high is {self.high}: expected nats above 0 (the log of a probability ratio), e.g. 1.5.")

    def __call__(
        self, ratio_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"], uniform_2BT: Tensor | None = None
    ) -> Perceived:
        """Clamp in float32 log space."""
        return Perceived(ratio_BT.clamp(self.low, self.high), mask_BT & (ratio_BT < self.low), mask_BT & (ratio_BT > self.high))


@dataclass(frozen=True)
class Reject:
    """Humanline sampling (METHOD §2): a token is rejected, and so detached, when

        π_θ/π_ref < M_P · B_P   or   π_ref/π_θ < M_R · B_R,    B_P ~ Beta(γ_P, 1), B_R ~ Beta(γ_R, 1)

    drawn fresh for every token and forward pass by inverse CDF, u^(1/γ). A rejected token keeps its place and value.
    Mean of Beta(γ, 1) is γ/(γ + 1); for concentrated draws this is PPO's clipped interval (Theorem 4.3).
    """

    name: Literal["reject"] = field(default="reject", kw_only=True)
    gamma_policy: float = 1.0
    """γ_P, > 0; γ_P < γ_R leans to exploitation"""
    gamma_reference: float = 1.0
    """γ_R, > 0"""
    scale_policy: float = 1.0
    """M_P, > 0"""
    scale_reference: float = 1.0
    """M_R, > 0"""
    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        for name in ("gamma_policy", "gamma_reference", "scale_policy", "scale_reference"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"limit.{name} is {getattr(self, name)}: expected a finite number above 0, e.g. 1.0.")

    def __call__(
        self, ratio_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"], uniform_2BT: Tensor | None = None
    ) -> Perceived:
        """Compare in log space; `uniform_2BT` are the draws u in [0, 1] for B_P and B_R."""
        assert uniform_2BT is not None, "Reject needs draws"
        log_u_2BT = uniform_2BT.log()
        low_BT = mask_BT & (ratio_BT < math.log(self.scale_policy) + log_u_2BT[0] / self.gamma_policy)
        high_BT = mask_BT & (-ratio_BT < math.log(self.scale_reference) + log_u_2BT[1] / self.gamma_reference)
        return Perceived(torch.where(low_BT | high_BT, ratio_BT.detach(), ratio_BT), low_BT, high_BT)


Limiter = Off | Clip | Reject
