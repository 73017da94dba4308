"""Objectives on groups of rewarded completions.

B sequences in G groups · T completion tokens.  NaN in feedback_B = unscored: no part in mean, std or loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from humanline.data.rows import Kind
from humanline.objectives.base import Facts, Loss, Objective, require, sequence_mean, sequence_sum, total

STD_EPS = 1e-4
"""added to the group's standard deviation, as TRL does"""


class Advantages(NamedTuple):
    """Rewards relative to their own group."""

    advantage_B: Float[Tensor, "B"]
    """0 for unscored completions, groups of one and groups of equal rewards"""
    scored_B: Bool[Tensor, "B"]
    equal_B: Bool[Tensor, "B"]
    """the completion's group has no two different rewards"""


def advantages(reward_B: Float[Tensor, "B"], group_B: Int[Tensor, "B"], scale: Literal["std", "none"] = "std") -> Advantages:
    """A = (reward − group mean) / (unbiased group std + 1e-4), over the scored completions of the prompt's whole group.

    scale "none" leaves the division out (Dr. GRPO). Exactly 0 where all rewards of a group are equal. Computed in float64 on the
    CPU, whatever the device: B numbers only, the same bits everywhere, and not every accelerator has float64.
    """
    given_B, group_B = reward_B, group_B.cpu()
    groups = int(group_B.max()) + 1 if group_B.numel() else 0
    reward_B = given_B.to("cpu", torch.float64)
    scored_B = ~reward_B.isnan()
    reward_B = torch.where(scored_B, reward_B, 0.0)
    zeros_G = reward_B.new_zeros(groups)
    count_G = zeros_G.index_add(0, group_B, scored_B.double())
    mean_G = zeros_G.index_add(0, group_B, reward_B) / count_G.clamp(min=1)
    centred_B = torch.where(scored_B, reward_B - mean_G[group_B], 0.0)
    std_G = (zeros_G.index_add(0, group_B, centred_B.square()) / (count_G - 1).clamp(min=1)).sqrt()
    # Equality is decided on the rewards themselves: a rounded mean must not turn equal rewards into tiny advantages.
    high_G = zeros_G.scatter_reduce(0, group_B, torch.where(scored_B, reward_B, -torch.inf), "amax", include_self=False)
    low_G = zeros_G.scatter_reduce(0, group_B, torch.where(scored_B, reward_B, torch.inf), "amin", include_self=False)
    equal_B = (high_G <= low_G)[group_B]
    advantage_B = centred_B if scale == "none" else centred_B / (std_G[group_B] + STD_EPS)
    advantage_B = torch.where(equal_B, 0.0, advantage_B)
    return Advantages(advantage_B.to(given_B), scored_B.to(given_B.device), equal_B.to(given_B.device))


@dataclass(frozen=True)
class GRPO(Objective):
    """−min(ρ_t A, clip(ρ_t, 1 − ε_low, 1 + ε_high) A) + β k3_t,  ρ_t = exp(r_t)  (Shao et al. 2024, eq. 3).

    k3 = exp(−d) + d − 1 with d the log-ratio before any limiter. Offline and sparse data without syncing: ρ is taken against the
    policy that produced the data (stored log-probs, else the starting policy), the KL against the starting policy.
    """

    name: Literal["grpo"] = field(default="grpo", kw_only=True)
    beta: float = 0.0
    """weight of the KL term, ≥ 0; 0 = off"""
    epsilon_low: float = 0.2
    """ratios below 1 − ε_low stop pushing down, > 0; .inf = off"""
    epsilon_high: float = 0.2
    """ratios above 1 + ε_high stop pushing up, > 0; .inf = off"""
    aggregate: Literal["token", "sequence", "constant"] = "token"
    """token: mean over all completion tokens of the step ("dapo") · sequence: mean of per-sequence means ("grpo") ·
    constant: sum / (sequences × `constant_length`) ("dr_grpo")"""
    constant_length: int = 1024
    """tokens, the fixed length of `aggregate: constant`, ≥ 1; unused otherwise"""
    scale: Literal["std", "none"] = "std"
    """divide advantages by the group's standard deviation, or not (Dr. GRPO)"""
    skip_equal_groups: bool = False
    """leave groups of equal rewards out of the loss altogether, the KL term and the normaliser included"""
    kind: ClassVar[Kind] = "group"
    sampler_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(0 <= self.beta < math.inf, "beta", self.beta, "a finite number from 0 on")
        require(self.epsilon_low > 0, "epsilon_low", self.epsilon_low, "a number above 0, e.g. 0.2")
        require(self.epsilon_high > 0, "epsilon_high", self.epsilon_high, "a number above 0, e.g. 0.2")
        require(self.constant_length >= 1, "constant_length", self.constant_length, "a number of tokens from 1 on")

    def _used(self, reward_B: Tensor, group_B: Tensor) -> tuple[Tensor, Advantages]:
        """Completions that take part in the loss, and the advantages."""
        relative = advantages(reward_B, group_B, self.scale)
        return relative.scored_B & ~relative.equal_B if self.skip_equal_groups else relative.scored_B, relative

    @property
    def anchored(self) -> bool:
        return self.beta > 0

    def weight(self, mask_BT: Bool[Tensor, "B T"], group_B: Int[Tensor, "B"], feedback_B: Float[Tensor, "B"]) -> Tensor:
        used_B, _ = self._used(feedback_B, group_B)
        if self.aggregate == "token":
            return (mask_BT & used_B[:, None]).sum().float()
        return used_B.sum().float() * (self.constant_length if self.aggregate == "constant" else 1)

    def loss(self, ratio_BT: Float[Tensor, "B T"], facts: Facts) -> Loss:
        used_B, (advantage_B, scored_B, equal_B) = self._used(facts.feedback_B, facts.group_B)
        mask_BT = facts.mask_BT & used_B[:, None]
        advantage_B1 = advantage_B[:, None]
        # min(ρA, clip(ρ)A) bounds ρ on one side only, by the sign of A. The bound comes before exp, and only tokens that A pushes
        # get there: an overflowing ρ would otherwise leave 0 · inf = NaN in the gradient of a token that must have none.
        low = math.log1p(-self.epsilon_low) if self.epsilon_low < 1 else -math.inf
        high = math.log1p(self.epsilon_high)
        pushed_BT = torch.where(mask_BT & (advantage_B1 != 0), ratio_BT, 0.0)
        bounded_BT = torch.where(advantage_B1 > 0, pushed_BT.clamp(max=high), pushed_BT.clamp(min=low))
        loss_BT = -advantage_B1 * bounded_BT.exp()
        log_ratio_BT = torch.where(mask_BT, facts.log_ratio_BT, 0.0)
        k3_BT = torch.expm1(-log_ratio_BT) + log_ratio_BT  # the −1 inside expm1: small d would cancel to nothing
        if self.beta:
            loss_BT = loss_BT + self.beta * k3_BT
        loss_B = sequence_mean(loss_BT, mask_BT) if self.aggregate == "sequence" else sequence_sum(loss_BT, mask_BT)
        first_B = facts.group_B.diff(prepend=facts.group_B.new_full((1,), -1)) != 0
        return Loss(
            loss_B.sum(),
            {
                "kl": total(k3_BT, mask_BT),
                "reward": total(facts.feedback_B, scored_B),
                "frac_zero_std_groups": total(equal_B.float(), first_B),
                "ppo_clipped_low": total((pushed_BT < low) & (advantage_B1 < 0), mask_BT),
                "ppo_clipped_high": total((pushed_BT > high) & (advantage_B1 > 0), mask_BT),
            },
        )
