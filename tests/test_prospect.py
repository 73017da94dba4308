"""Prospect theory: exact on small cases by hand, and the properties the theory promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from humanline.errors import ConfigError, DataError
from humanline.limit import Reject
from humanline.prospect import (
    Human,
    beta_draws,
    capacity,
    decision_weights,
    human_curve,
    implied_capacity,
    perception,
    surviving_interval,
    utility,
    value,
)

OBJECTIVE = Human(gamma_gain=1, gamma_loss=1)
outcomes = st.lists(st.integers(-4, 4).map(float) | st.floats(-20, 20), min_size=1, max_size=30)
people = st.builds(
    Human, gamma_gain=st.floats(0.3, 1), gamma_loss=st.floats(0.3, 1), alpha=st.floats(0.2, 1.5), z0=st.floats(-1, 1)
)


def omega(a: float, gamma: float) -> float:
    """The capacity function as METHOD writes it."""
    return a**gamma / (a**gamma + (1 - a) ** gamma) ** (1 / gamma)


def test_value_by_hand():
    """α = 0.5, λ = 2, z0 = 1: v(5) = √4 = 2, v(1) = 0, v(−3) = −2 √4 = −4."""
    person = Human(alpha=0.5, loss_aversion=2, z0=1)
    assert value([5.0, 1.0, -3.0], person) == pytest.approx([2, 0, -4])


def test_capacity_by_hand():
    """γ = 0.5, a = ¼: ½ / (½ + √¾)² = 0.26795 (= 2 − √3); over-weights ¼ and under-weights ¾."""
    assert capacity([0.25], 0.5) == pytest.approx([2 - math.sqrt(3)])
    assert capacity(0.01, 0.61) > 0.01 and capacity(0.99, 0.61) < 0.99


def test_decision_weights_by_hand_with_gains_losses_and_a_tie():
    """Z = −2, −1, 3, 3, each ¼. Losses: Ω⁻(¼), Ω⁻(½) − Ω⁻(¼). The two 3s share Ω⁺(½) − Ω⁺(0)."""
    weights = decision_weights([3.0, -2.0, 3.0, -1.0])
    gain = omega(0.5, 0.61) / 2
    assert weights == pytest.approx([gain, omega(0.25, 0.69), gain, omega(0.5, 0.69) - omega(0.25, 0.69)])
    assert utility([3.0, -2.0, 3.0, -1.0]) == pytest.approx(float(weights @ value([3.0, -2.0, 3.0, -1.0])))


def test_given_probabilities_equal_repeated_outcomes():
    """P(1) = ¾, P(−1) = ¼ as probabilities and as four outcomes."""
    assert utility([1.0, -1.0], probability=[0.75, 0.25]) == pytest.approx(utility([1.0, 1.0, 1.0, -1.0]))


@given(st.lists(st.floats(0, 1), min_size=2), st.floats(0.3, 1))
def test_capacity_is_monotone_and_fixes_the_ends(mass: list[float], gamma: float):
    """Monotone for the γ ≥ 0.28 that the form is used with."""
    perceived = capacity(sorted(mass), gamma)
    assert (np.diff(perceived) >= -1e-12).all()
    assert capacity([0.0, 1.0], gamma).tolist() == [0.0, 1.0]


@given(outcomes, people)
def test_weights_sum_to_the_perceived_sides_and_depend_on_order_only(z: list[float], person: Human):
    """Σ ω = Ω⁺(P(gain)) + Ω⁻(P(loss)); a monotone map of outcomes that keeps z0 in place leaves the weights alone."""
    weights = decision_weights(z, person)
    gain = sum(outcome >= person.z0 for outcome in z) / len(z)
    assert (weights >= -1e-12).all()
    assert weights.sum() == pytest.approx(capacity(gain, person.gamma_gain) + capacity(1 - gain, person.gamma_loss), abs=1e-9)
    stretched = [2 * (outcome - person.z0) + person.z0 for outcome in z]
    if len(set(stretched)) == len(set(z)):
        assert decision_weights(stretched, person) == pytest.approx(weights, abs=1e-9)


@given(outcomes)
def test_objective_perception_is_the_plain_expectation(z: list[float]):
    assert decision_weights(z, OBJECTIVE) == pytest.approx([1 / len(z)] * len(z))
    assert utility(z, OBJECTIVE) == pytest.approx(float(np.mean(value(z, OBJECTIVE))), abs=1e-9)


@given(outcomes, people, st.randoms(use_true_random=False))
def test_the_bound_of_proposition_3_4_is_never_violated(z: list[float], person: Human, rng):
    for weights in (None, [rng.random() + 1e-3 for _ in z]):
        seen = perception(z, weights, person)
        assert seen.kl >= 0 and seen.gap <= seen.bound + 1e-9
    assert perception(z, human=OBJECTIVE).kl == pytest.approx(0, abs=1e-12)


def test_human_curve_is_an_inverted_s():
    """Symmetric outcomes: above the diagonal near 0, below it near 1, from (0, 0) to (1, 1), never falling."""
    curve = human_curve(np.linspace(-3, 3, 200))
    assert (curve.objective[0], curve.perceived[0]) == (0, 0)
    assert (curve.objective[-1], curve.perceived[-1]) == pytest.approx((1, 1))
    assert curve.perceived[5] > curve.objective[5] and curve.perceived[-6] < curve.objective[-6]
    assert (np.diff(curve.perceived) >= 0).all()


def test_implied_capacity_of_own_worse_and_better_samplers():
    z = np.random.default_rng(0).normal(size=500)
    own, worse, better = (implied_capacity(z, z + shift) for shift in (0, -1, 1))
    assert own.perceived == pytest.approx(own.objective)
    inside = slice(50, 450)
    assert (worse.perceived[inside] > worse.objective[inside]).all() and (
        better.perceived[inside] < better.objective[inside]
    ).all()


def test_implied_capacity_by_hand():
    """Policy's outcomes 0, 1, 2, 3; the sampler's −1 and 2.5: shares 0, ½, ½, ½, 1 at masses 0, ¼, ½, ¾, 1."""
    curve = implied_capacity([3.0, 0.0, 2.0, 1.0], [2.5, -1.0])
    assert curve.objective.tolist() == [0, 0.25, 0.5, 0.75, 1] and curve.perceived.tolist() == [0, 0.5, 0.5, 0.5, 1]


def test_beta_draws_have_the_mean_and_the_distribution():
    """E = γ/(γ+1) and P(B ≤ b) = b^γ, within 4 standard errors of 200 000 draws."""
    for gamma in (0.5, 1.0, 3.0):
        draws = beta_draws(gamma, (200_000,), torch.Generator().manual_seed(0))
        assert draws.mean().item() == pytest.approx(gamma / (gamma + 1), abs=4 * draws.std().item() / 447)
        assert (draws <= 0.5).double().mean().item() == pytest.approx(0.5**gamma, abs=4 * 0.5 / 447)


def test_theorem_4_3_rejection_becomes_clipping():
    """γ large and M chosen for ε = 0.2: ratios inside [0.8, 1.2] survive, those outside lose their gradient."""
    gamma, epsilon = 1e6, 0.2
    mean = gamma / (gamma + 1)
    scales = (1 - epsilon) / mean, 1 / (1 + epsilon) / mean
    assert surviving_interval(gamma, gamma, *scales) == pytest.approx((0.8, 1.2))
    ratio = torch.tensor([[0.75, 0.79, 0.81, 1.0, 1.19, 1.21, 1.3]]).log().requires_grad_()
    mask = torch.ones_like(ratio, dtype=torch.bool)
    uniform = 1 - torch.rand(2, 1, 7, generator=torch.Generator().manual_seed(0))
    limiter = Reject(gamma_policy=gamma, gamma_reference=gamma, scale_policy=scales[0], scale_reference=scales[1])
    limiter(ratio, mask, uniform).ratio_BT.sum().backward()
    assert ratio.grad.tolist() == [[0, 0, 1, 1, 1, 0, 0]]


def test_tensors_give_tensors_and_arrays_arrays():
    assert isinstance(value(torch.tensor([1.0])), torch.Tensor) and isinstance(value([1.0]), np.ndarray)
    assert isinstance(human_curve(torch.tensor([1.0, 2.0])).perceived, torch.Tensor)


def test_wrong_input_is_named():
    with pytest.raises(ConfigError, match=r"gamma_gain is 1.5: expected a number in \(0, 1\]"):
        Human(gamma_gain=1.5)
    with pytest.raises(DataError, match=r"expected probabilities in \[0, 1\]"):
        capacity([1.2], 0.5)
    with pytest.raises(DataError, match="NaN"):
        value([math.nan])
    with pytest.raises(DataError, match="summing to 1"):
        utility([1.0, 2.0], probability=[0.5, 0.6])
    with pytest.raises(DataError, match="at least one number"):
        decision_weights([])


def test_probabilities_of_a_float32_softmax_are_probabilities():
    for seed in range(20):
        q = torch.softmax(torch.randn(500, generator=torch.Generator().manual_seed(seed)), 0)
        z = torch.arange(500) - 250.0
        assert utility(z, OBJECTIVE, q) == pytest.approx(float((q.double() / q.double().sum() * value(z)).sum()))


def test_outcomes_that_make_no_curve_are_named():
    with pytest.raises(DataError, match="at least one number"):
        implied_capacity([], [1.0])
    with pytest.raises(DataError, match=r"shape \(1, 2\)"):
        implied_capacity([[1.0, 2.0]], [1.0])
    with pytest.raises(ConfigError, match="z0 is nan"):
        Human(z0=math.nan)
