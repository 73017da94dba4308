"""Limiters: which tokens they stop, what the others keep, and the limits in which they become something known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from humanline.errors import ConfigError
from humanline.limit import Clip, Limiter, Off, Perceived, Reject
from humanline.objectives import DPO, GRPO, IPO, KTO, Facts, Objective

INFINITE = Clip(low=-math.inf, high=math.inf)
OBJECTIVES = [DPO(), DPO(label_smoothing=0.2), IPO(), KTO(), GRPO(), GRPO(beta=0.1, aggregate="sequence")]
EPSILON = 0.2
GAMMA = 1e7
CONCENTRATED = Reject(
    gamma_policy=GAMMA,
    gamma_reference=GAMMA,
    scale_policy=(1 - EPSILON) * (GAMMA + 1) / GAMMA,
    scale_reference=(GAMMA + 1) / GAMMA / (1 + EPSILON),
)
"""Theorem 4.3: M_P E[B_P] = 1 − ε and M_R E[B_R] = 1/(1 + ε), with E[Beta(γ, 1)] = γ/(γ + 1)"""


def uniforms(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand((2, *shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def row(*values: float) -> tuple[Tensor, Tensor]:
    """One sequence in float32, every token counting."""
    ratio_BT = torch.tensor([values])
    return ratio_BT, torch.ones_like(ratio_BT, dtype=torch.bool)


def loss_and_gradient(objective: Objective, limiter: Limiter, ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Four sequences: two pairs, four labels, or two groups of two."""
    leaf_BT = ratio_BT.clone().requires_grad_()
    group_B = torch.arange(4) if objective.kind == "label" else torch.tensor([0, 0, 1, 1])
    facts = Facts(mask_BT, group_B, torch.tensor([1.0, 0.0, 1.0, 0.0]), leaf_BT, torch.tensor(0.1))
    perceived: Perceived = limiter(leaf_BT, mask_BT, uniforms(*ratio_BT.shape))
    total = objective.loss(perceived.ratio_BT, facts).total
    total.backward()
    assert leaf_BT.grad is not None
    return total.detach(), leaf_BT.grad


def test_clip_clamps_each_token_and_says_which() -> None:
    """Bounds −1 and 0.8 (asymmetric) on −3, −1, −0.2, 0.8, 0.9: the bounds themselves are inside."""
    ratio_BT, mask_BT = row(-3.0, -1.0, -0.2, 0.8, 0.9)
    perceived = Clip(low=-1.0, high=0.8)(ratio_BT, mask_BT)
    assert torch.equal(perceived.ratio_BT, torch.tensor([[-1.0, -1.0, -0.2, 0.8, 0.8]]))
    assert perceived.low_BT.tolist() == [[True, False, False, False, False]]
    assert perceived.high_BT.tolist() == [[False, False, False, False, True]]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_infinite_bounds_are_the_plain_objective_bit_for_bit(objective: Objective) -> None:
    ratio_BT = 3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    mask_BT = torch.arange(6) < torch.tensor([[6], [2], [4], [5]])
    plain = loss_and_gradient(objective, Off(), ratio_BT, mask_BT)
    for actual, expected in zip(loss_and_gradient(objective, INFINITE, ratio_BT, mask_BT), plain, strict=True):
        assert torch.equal(actual, expected)
    assert (plain[1] != 0).any()


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_at_the_reference_no_limiter_changes_anything(objective: Objective) -> None:
    """Right after a sync every log-ratio is 0, where all limiters with M ≤ 1 keep value and gradient."""
    ratio_BT, mask_BT = torch.zeros(4, 5), torch.ones(4, 5, dtype=torch.bool)
    plain = loss_and_gradient(objective, Off(), ratio_BT, mask_BT)
    for limiter in (Clip(), Clip(low=-0.01, high=0.01), Reject(), Reject(gamma_policy=0.1, gamma_reference=9.0)):
        for actual, expected in zip(loss_and_gradient(objective, limiter, ratio_BT, mask_BT), plain, strict=True):
            assert torch.equal(actual, expected)


def test_reject_keeps_the_value_and_stops_the_gradient() -> None:
    """Log-ratios ∓0.5, u = 0.9 and 0.3, γ = M = 1. ρ = 0.607 < 0.9 and 1/ρ = 0.607 < 0.9 are rejected; not so with u = 0.3."""
    ratio_BT, mask_BT = row(-0.5, -0.5, 0.5, 0.5)
    ratio_BT.requires_grad_()
    uniform_2BT = torch.tensor([0.9, 0.3, 0.9, 0.3]).expand(2, 1, 4)
    perceived = Reject()(ratio_BT, mask_BT, uniform_2BT)
    assert torch.equal(perceived.ratio_BT, ratio_BT)
    assert perceived.low_BT.tolist() == [[True, False, False, False]]
    assert perceived.high_BT.tolist() == [[False, False, True, False]]
    perceived.ratio_BT.sum().backward()
    assert ratio_BT.grad is not None and ratio_BT.grad.tolist() == [[0.0, 1.0, 0.0, 1.0]]


def test_reject_reads_the_first_draw_for_the_policy_and_the_second_for_the_reference() -> None:
    ratio_BT, mask_BT = row(-0.5, 0.5)
    ones_and_zeros = torch.stack([torch.ones(1, 2), torch.zeros(1, 2)])
    perceived = Reject()(ratio_BT, mask_BT, ones_and_zeros)
    assert (perceived.low_BT.tolist(), perceived.high_BT.tolist()) == ([[True, False]], [[False, False]])
    perceived = Reject()(ratio_BT, mask_BT, ones_and_zeros.flip(0))
    assert (perceived.low_BT.tolist(), perceived.high_BT.tolist()) == ([[False, False]], [[False, True]])


@pytest.mark.parametrize("uniform", [0.0, 1e-30])
def test_small_draws_reject_nothing(uniform: float) -> None:
    """u → 0 makes B → 0, below any ratio of probabilities that a row can hold."""
    ratio_BT, mask_BT = row(-60.0, -1.0, 0.0, 1.0, 60.0)
    perceived = Reject()(ratio_BT, mask_BT, torch.full((2, 1, 5), uniform))
    assert not (perceived.low_BT | perceived.high_BT).any()


@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("side", ["policy", "reference"])
def test_rejection_frequency_is_the_beta_distribution(gamma: float, side: str) -> None:
    """P(reject | ρ) = P(ρ < M B) = 1 − F(ρ/M), F(x) = x^γ the distribution function of Beta(γ, 1). 100 000 draws, 4 σ."""
    draws = 100_000
    for scale, rho in ((1.0, 0.2), (1.0, 0.7), (0.8, 0.5), (1.3, 0.9), (0.8, 0.9)):
        log_rho = math.log(rho) if side == "policy" else -math.log(rho)
        limiter = Reject(**{f"gamma_{side}": gamma, f"scale_{side}": scale})
        ratio_BT = torch.full((1, draws), log_rho, dtype=torch.float64)
        perceived = limiter(ratio_BT, torch.ones(1, draws, dtype=torch.bool), uniforms(1, draws))
        share = (perceived.low_BT if side == "policy" else perceived.high_BT).double().mean().item()
        expected = max(0.0, 1 - (rho / scale) ** gamma)
        assert share == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / draws))


@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0, 20.0])
def test_draws_have_the_mean_of_beta(gamma: float) -> None:
    """Ratios ρ uniform on (0, 1) are rejected with P(ρ < B) = E[B] = γ/(γ + 1). 200 000 draws, 4 σ."""
    draws = 200_000
    rho_BT = uniforms(1, draws, seed=1)[0]
    mask_BT = torch.ones(1, draws, dtype=torch.bool)
    share = Reject(gamma_policy=gamma)(rho_BT.log(), mask_BT, uniforms(1, draws)).low_BT.double().mean().item()
    mean = gamma / (gamma + 1)
    assert share == pytest.approx(mean, abs=4 * math.sqrt(mean * (1 - mean) / draws))


def test_concentrated_rejection_is_clipping() -> None:
    """Theorem 4.3: for γ → ∞ the surviving interval is [1 − ε, 1 + ε], and a sum over tokens has the gradient of clipping.

    The gradient of Σ_t ρ_t A is A ρ_t inside and exactly 0 outside; where A pushes outwards that is PPO's clipped objective.
    """
    rho_BT = torch.tensor([[0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 2.0]] * 4, dtype=torch.float64)
    ratio_BT, mask_BT = rho_BT.log(), torch.ones(4, 7, dtype=torch.bool)
    clip = Clip(low=math.log(1 - EPSILON), high=math.log(1 + EPSILON))
    perceived, clipped = CONCENTRATED(ratio_BT, mask_BT, uniforms(4, 7)), clip(ratio_BT, mask_BT)
    assert torch.equal(perceived.low_BT, clipped.low_BT) and torch.equal(perceived.high_BT, clipped.high_BT)
    assert perceived.low_BT[0].tolist() == [True, True, False, False, False, False, False]
    assert perceived.high_BT[0].tolist() == [False, False, False, False, False, True, True]

    unbounded = GRPO(epsilon_low=math.inf, epsilon_high=math.inf)
    _, rejected_gradient_BT = loss_and_gradient(unbounded, CONCENTRATED, ratio_BT, mask_BT)
    _, clipped_gradient_BT = loss_and_gradient(unbounded, clip, ratio_BT, mask_BT)
    assert torch.equal(rejected_gradient_BT, clipped_gradient_BT)
    _, ppo_gradient_BT = loss_and_gradient(GRPO(), Off(), ratio_BT, mask_BT)
    outward_BT = (torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None] * ratio_BT) >= 0
    assert torch.equal(rejected_gradient_BT[outward_BT], ppo_gradient_BT[outward_BT])


@pytest.mark.parametrize("limiter", [Off(), Clip(), Reject(scale_policy=5.0, scale_reference=5.0)], ids=repr)
@pytest.mark.parametrize("garbage", [-1e30, 1e30, -math.inf, math.inf, math.nan])
def test_padding_is_never_counted_as_stopped(limiter: Limiter, garbage: float) -> None:
    ratio_BT, _ = row(0.1, garbage, 0.2, garbage)
    mask_BT = torch.tensor([[True, False, True, False]])
    perceived = limiter(ratio_BT, mask_BT, torch.full((2, 1, 4), 0.999))
    assert not (perceived.low_BT | perceived.high_BT)[~mask_BT].any()
    if isinstance(limiter, Reject):
        assert perceived.low_BT[mask_BT].all() and perceived.high_BT[mask_BT].all()


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=20), st.floats(-5, -1e-3), st.floats(1e-3, 5))
def test_clip_is_a_projection(values: list[float], low: float, high: float) -> None:
    """Into the bounds, unchanged inside, twice is once, and stopped means moved."""
    clip = Clip(low=low, high=high)
    ratio_BT, mask_BT = row(*values)
    perceived = clip(ratio_BT, mask_BT)
    bounds = torch.tensor([low, high])
    assert ((perceived.ratio_BT >= bounds[0]) & (perceived.ratio_BT <= bounds[1])).all()
    assert torch.equal(perceived.low_BT | perceived.high_BT, perceived.ratio_BT != ratio_BT)
    again = clip(perceived.ratio_BT, mask_BT)
    assert torch.equal(again.ratio_BT, perceived.ratio_BT) and not (again.low_BT | again.high_BT).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clip(low=0.0), "limit.low is 0.0: expected nats below 0 (the log of a probability ratio), e.g. -1.5."),
        (lambda: Clip(low=math.nan), "limit.low is nan: expected nats below 0 (the log of a probability ratio), e.g. -1.5."),
        (lambda: Clip(high=-1.0), "limit.high is -1.0: expected nats above 0 (the log of a probability ratio), e.g. 1.5."),
        (lambda: Reject(gamma_policy=0.0), "limit.gamma_policy is 0.0: expected a finite number above 0, e.g. 1.0."),
        (lambda: Reject(gamma_reference=math.inf), "limit.gamma_reference is inf: expected a finite number above 0, e.g. 1.0."),
        (lambda: Reject(scale_policy=-2.0), "limit.scale_policy is -2.0: expected a finite number above 0, e.g. 1.0."),
        (lambda: Reject(scale_reference=math.nan), "limit.scale_reference is nan: expected a finite number above 0, e.g. 1.0."),
    ],
)
def test_settings_out_of_range_are_named(make: object, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()  # type: ignore[operator]
    assert str(error.value) == message
