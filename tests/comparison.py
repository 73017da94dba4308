"""What a comparison with another implementation needs on our side: plain models, their log-probs, their gradients.

B sequences · L tokens of prompt and completion · T = L − 1 predicted positions.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from humanline.objectives import Facts, Loss, Objective

Gradients = dict[str, Tensor]


def perturbed(model: PreTrainedModel, seed: int, size: float) -> PreTrainedModel:
    """A copy with N(0, size²) added to every weight: a policy that has moved."""
    generator = torch.Generator().manual_seed(seed)
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return moved


def token_logps(model: PreTrainedModel, ids_BL: Tensor, attention_BL: Tensor) -> Tensor:
    """log p(token | those before it) at every position but the first, straight from the model's logits."""
    logits = model(input_ids=ids_BL, attention_mask=attention_BL, use_cache=False).logits[:, :-1]
    return logits.log_softmax(-1).gather(-1, ids_BL[:, 1:, None]).squeeze(-1)


def one_step(objective: Objective, ratio_BT: Tensor, facts: Facts) -> tuple[Loss, Tensor]:
    """The objective on a step held in one micro-batch: its sums, and the loss, sum divided by weight."""
    loss = objective.loss(ratio_BT, facts)
    return loss, loss.total / objective.weight(facts.mask_BT, facts.group_B, facts.feedback_B)


def average(loss: Loss, metric: str) -> float:
    value, weight = loss.metrics[metric]
    return (value / weight).item()


def gradients(model: PreTrainedModel, loss: Tensor) -> Gradients:
    """d(loss)/d(parameter) by name, for all parameters that got one."""
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_agree(ours: tuple[PreTrainedModel, Tensor], theirs: tuple[PreTrainedModel, Tensor]) -> None:
    """Each side is (model, loss). Losses to 1e-5 relative, gradients to 1e-5 of the largest entry of the whole gradient."""
    assert ours[1].item() == pytest.approx(theirs[1].item(), rel=1e-5, abs=1e-7)
    actual, expected = gradients(*ours), gradients(*theirs)
    assert actual.keys() == expected.keys()
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    assert largest > 1e-3, "a zero gradient would agree with anything"
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=0, atol=1e-5 * largest)
