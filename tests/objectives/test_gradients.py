"""Derivatives of every objective behind every limiter, against finite differences in float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from humanline.limit import Clip, Limiter, Off, Perceived, Reject
from humanline.objectives import DPO, GRPO, IPO, KTO, SFT, Facts, Objective, SimPO

WITH_REFERENCE = [
    DPO(beta=0.3),
    DPO(beta=0.3, label_smoothing=0.2),
    IPO(tau=0.4),
    KTO(beta=0.6, desirable_weight=1.2, undesirable_weight=0.7),
    GRPO(),
    GRPO(beta=0.1, aggregate="sequence"),
    GRPO(beta=0.1, aggregate="constant", scale="none", epsilon_low=0.1, epsilon_high=0.4),
    GRPO(epsilon_low=math.inf, epsilon_high=math.inf),
]
WITHOUT_REFERENCE = [SimPO(), SFT()]
LIMITERS = [Off(), Clip(low=-0.5, high=0.4), Reject(gamma_policy=0.7, gamma_reference=1.5, scale_policy=1.1, scale_reference=1.2)]
COMBINATIONS = [(objective, limiter) for objective in WITH_REFERENCE for limiter in LIMITERS]
COMBINATIONS += [(objective, Off()) for objective in WITHOUT_REFERENCE]

MakeFacts = Callable[..., Facts]


def name(value: Objective | Limiter) -> str:
    """The settings that differ from their defaults."""
    changed = (f for f in dataclasses.fields(value) if getattr(value, f.name) != f.default)
    return f"{type(value).__name__}({','.join(f'{f.name}={getattr(value, f.name)}' for f in changed)})"


def kinks(objective: Objective, limiter: Limiter) -> list[float]:
    """Log-ratios at which the loss has no derivative."""
    bounds = [limiter.low, limiter.high] if isinstance(limiter, Clip) else []
    if isinstance(objective, GRPO):
        bounds += [math.log1p(objective.epsilon_high)]
        bounds += [math.log1p(-objective.epsilon_low)] if objective.epsilon_low < 1 else []
    return bounds


def draw(objective: Objective, limiter: Limiter, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Log-ratios on both sides of every bound, none within 1e-3 of one, and the limiter's uniform draws."""
    generator = torch.Generator().manual_seed(11)
    ratio_BT = 0.6 * torch.randn(mask_BT.shape, generator=generator, dtype=torch.float64)
    uniform_2BT = torch.rand((2, *mask_BT.shape), generator=generator, dtype=torch.float64)
    for bound in kinks(objective, limiter):
        assert ((ratio_BT - bound).abs() > 1e-3).all(), "finite differences need distance from the kinks"
        assert (ratio_BT[mask_BT] > bound).any() or bound == math.inf
        assert (ratio_BT[mask_BT] < bound).any()
    return ratio_BT, uniform_2BT


@pytest.mark.parametrize(("objective", "limiter"), COMBINATIONS, ids=name)
def test_gradients_are_those_of_finite_differences(objective: Objective, limiter: Limiter, make_facts: MakeFacts) -> None:
    """Over all tokens but rejected ones: those keep their value, so a finite difference would see them move the loss."""
    facts = make_facts(objective, kl=0.2)
    ratio_BT, uniform_2BT = draw(objective, limiter, facts.mask_BT)
    stopped = limiter(ratio_BT, facts.mask_BT, uniform_2BT)
    moving_BT = facts.mask_BT & ~(stopped.low_BT | stopped.high_BT) if isinstance(limiter, Reject) else facts.mask_BT
    assert moving_BT.any()

    def loss(values: Tensor) -> Tensor:
        current_BT = ratio_BT.masked_scatter(moving_BT, values)
        perceived_BT = limiter(current_BT, facts.mask_BT, uniform_2BT).ratio_BT
        return objective.loss(perceived_BT, facts._replace(log_ratio_BT=current_BT)).total

    assert loss(ratio_BT[moving_BT]).dtype is torch.float64
    assert torch.autograd.gradcheck(loss, (ratio_BT[moving_BT].requires_grad_(),), eps=1e-6, atol=1e-8, rtol=1e-6)


def gradient_of(objective: Objective, facts: Facts, ratio_BT: Tensor, perceive: Callable[[Tensor], Perceived]) -> Tensor:
    """∂ loss / ∂ log-ratio; the KL term gets a constant."""
    leaf_BT = ratio_BT.clone().requires_grad_()
    objective.loss(perceive(leaf_BT).ratio_BT, facts._replace(log_ratio_BT=ratio_BT)).total.backward()
    assert leaf_BT.grad is not None
    return leaf_BT.grad


@pytest.mark.parametrize("objective", WITH_REFERENCE, ids=name)
@pytest.mark.parametrize("limiter", LIMITERS[1:], ids=name)
def test_stopped_tokens_have_gradient_zero_exactly(objective: Objective, limiter: Limiter, make_facts: MakeFacts) -> None:
    """Stopped by the limiter or padded: exactly 0. All others move the loss, but for the tokens that GRPO's own ε stops."""
    facts = make_facts(objective, kl=0.2)
    ratio_BT, uniform_2BT = draw(objective, limiter, facts.mask_BT)
    stopped = limiter(ratio_BT, facts.mask_BT, uniform_2BT)
    assert stopped.low_BT.any() and stopped.high_BT.any()
    counts_BT = facts.mask_BT & ~stopped.low_BT & ~stopped.high_BT
    gradient_BT = gradient_of(objective, facts, ratio_BT, lambda leaf_BT: limiter(leaf_BT, facts.mask_BT, uniform_2BT))
    assert (gradient_BT[~counts_BT] == 0).all()
    if not isinstance(objective, GRPO):
        assert (gradient_BT[counts_BT] != 0).all()
    elif objective.epsilon_high == math.inf:
        one_of_a_group_BT = (facts.group_B == 2)[:, None] & counts_BT
        assert (gradient_BT[one_of_a_group_BT] == 0).all() and one_of_a_group_BT.any()
        assert (gradient_BT[counts_BT & ~one_of_a_group_BT] != 0).all()


@pytest.mark.parametrize("objective", WITH_REFERENCE, ids=name)
def test_a_token_on_a_bound_still_learns(objective: Objective, make_facts: MakeFacts) -> None:
    """The bounds belong to the interval: a log-ratio equal to a bound is not stopped and has its full gradient."""
    clip = Clip(low=-0.1, high=0.1)
    facts = make_facts(objective, dtype=torch.float32)
    ratio_BT = torch.full(facts.mask_BT.shape, 0.1).where(facts.feedback_B[:, None] > 0.4, -0.1)
    stopped = clip(ratio_BT, facts.mask_BT)
    assert not stopped.low_BT.any() and not stopped.high_BT.any()
    plain_BT = gradient_of(objective, facts, ratio_BT, lambda leaf_BT: Off()(leaf_BT, facts.mask_BT))
    assert torch.equal(gradient_of(objective, facts, ratio_BT, lambda leaf_BT: clip(leaf_BT, facts.mask_BT)), plain_BT)
    assert (plain_BT != 0).any()


@pytest.mark.parametrize(("advantage_sign", "log_ratio"), [(1, 100.0), (-1, -100.0)])
def test_an_overflowing_ratio_does_not_turn_grpo_gradients_into_nan(advantage_sign: int, log_ratio: float) -> None:
    """ρ = e^±100 on the side that ε bounds: loss ∓(1 ± 0.2)|A| and gradient 0, though e^100 is infinite in float32."""
    ratio_BT = torch.tensor([[log_ratio], [0.0]], requires_grad=True)
    feedback_B = torch.tensor([1.0, 0.0]) if advantage_sign > 0 else torch.tensor([0.0, 1.0])
    facts = Facts(
        torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, dtype=torch.long), feedback_B, ratio_BT.detach(), torch.zeros(())
    )
    loss = GRPO(scale="none").loss(ratio_BT, facts)
    loss.total.backward()
    bound = 1.2 if advantage_sign > 0 else 0.8
    assert loss.total.item() == pytest.approx(-advantage_sign * 0.5 * (bound - 1.0), abs=1e-7)
    assert ratio_BT.grad is not None
    assert ratio_BT.grad[0].item() == 0.0
    assert ratio_BT.grad[1].item() == advantage_sign * 0.5


def test_an_overflowing_ratio_without_advantage_gives_nothing() -> None:
    """Equal rewards: A = 0, so the loss is 0 and its gradient 0 even where ρ is infinite (0 · ∞ must not appear)."""
    ratio_BT = torch.full((2, 3), 100.0, requires_grad=True)
    facts = Facts(
        torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, dtype=torch.long), torch.ones(2), torch.zeros(2, 3), torch.zeros(())
    )
    loss = GRPO().loss(ratio_BT, facts)
    loss.total.backward()
    assert loss.total.item() == 0.0
    assert ratio_BT.grad is not None and (ratio_BT.grad == 0).all()


@pytest.mark.parametrize("log_ratio", [1e-3, -1e-3, 1e-4, 0.02, -0.3, 3.0])
def test_k3_is_exact_near_zero(log_ratio: float) -> None:
    """k3 = d²/2 − d³/6 + … is 5e-7 at d = 1e-3, where exp(−d) + d − 1 in float32 has only an eighth of that as its spacing."""
    d_BT = torch.tensor([[log_ratio]])
    exact = math.expm1(-d_BT.double().item()) + d_BT.double().item()
    facts = Facts(torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.long), torch.ones(1), d_BT, torch.zeros(()))
    measured, weight = GRPO().loss(torch.zeros(1, 1), facts).metrics["kl"]
    assert weight.item() == 1
    assert measured.item() == pytest.approx(exact, rel=3e-3)
    assert measured.item() > 0
