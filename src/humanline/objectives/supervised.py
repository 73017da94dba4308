"""Supervised fine-tuning: the objective without feedback."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor

from humanline.data.rows import Kind
from humanline.objectives.base import Facts, Loss, Objective, sequence_sum, total


@dataclass(frozen=True)
class SFT(Objective):
    """−log π_θ(y_t), mean over all completion tokens of the step. No reference, so no humanline variant."""

    name: Literal["sft"] = field(default="sft", kw_only=True)
    kind: ClassVar[Kind] = "chat"
    reference: ClassVar[bool] = False

    def weight(self, mask_BT: Bool[Tensor, "B T"], group_B: Int[Tensor, "B"], feedback_B: Float[Tensor, "B"]) -> Tensor:
        return mask_BT.sum().float()

    def loss(self, ratio_BT: Float[Tensor, "B T"], facts: Facts) -> Loss:
        return Loss(-sequence_sum(ratio_BT, facts.mask_BT).sum(), {"logp": total(ratio_BT, facts.mask_BT)})
