"""Prospect theory of a generative model: how people weigh outcomes, and what that says about data (METHOD §1–2 of the paper).

An outcome is a surprisal z = log π_θ(y|x) − log π_ref(y|x), in nats. n outcomes, each with probability 1/n unless given.
Every function takes tensors, arrays or lists, computes in float64, and returns a tensor for tensors and an array otherwise.
Source: *Humanline: Online Alignment as Perceptual Loss* (arXiv 2509.24207); the value and capacity functions are those of Tversky and
Kahneman (1992), with their median parameters as defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from humanline.errors import ConfigError, DataError

Values = Any
"""a tensor, an array, or numbers in a sequence"""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Human:
    """Parameters of a person's perception; `Human(gamma_gain=1, gamma_loss=1)` weighs outcomes objectively."""

    alpha: float = 0.88
    """curvature of value, > 0; 1 = linear"""
    loss_aversion: float = 2.25
    """λ, how much heavier a loss is than a gain of its size, > 0"""
    z0: float = 0.0
    """reference point, nats"""
    gamma_gain: float = 0.61
    """γ⁺ of the capacity function over gains, in (0, 1]; 1 = objective"""
    gamma_loss: float = 0.69
    """γ⁻ over losses, in (0, 1]; 1 = objective"""

    def __post_init__(self) -> None:
        if not math.isfinite(self.z0):
            raise ConfigError(f"z0 is {self.z0}: expected a finite number of nats.")
        for name in ("alpha", "loss_aversion"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}: expected a finite number above 0.")
        for name in ("gamma_gain", "gamma_loss"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: expected a number in (0, 1]; 1 is objective perception.")


def _like_input(function: Callable[..., Result]) -> Callable[..., Result]:
    """Compute on float64 tensors; hand back arrays unless the first argument was a tensor."""

    @wraps(function)
    def wrapped(values: Values, *rest: Any, **options: Any) -> Result:
        result = function(_tensor(values), *rest, **options)
        return result if isinstance(values, Tensor) else _arrays(result)

    return wrapped


def _tensor(values: Values) -> Tensor:
    tensor = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    if tensor.isnan().any():
        raise DataError("values hold NaN: expected numbers. Leave out outcomes that could not be measured.")
    return tensor.double()


def _arrays(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.numpy()
    return type(result)(*map(_arrays, result)) if isinstance(result, tuple) else result


@_like_input
def value(z: Values, human: Human = Human()) -> Values:
    """v(z) = (z − z0)^α above the reference point, −λ (z0 − z)^α below it; same shape as z."""
    gain, loss = (z - human.z0).clamp(min=0), (human.z0 - z).clamp(min=0)
    return gain**human.alpha - human.loss_aversion * loss**human.alpha


@_like_input
def capacity(a: Values, gamma: float) -> Values:
    """Ω(a; γ) = a^γ / (a^γ + (1 − a)^γ)^(1/γ), a in [0, 1]: the perceived size of a cumulative probability. γ = 1: a itself."""
    if not 0 < gamma <= 1:
        raise ConfigError(f"gamma is {gamma}: expected a number in (0, 1]; 1 is objective perception.")
    if ((a < 0) | (a > 1)).any():
        raise DataError(f"a holds {a.min().item():g} … {a.max().item():g}: expected probabilities in [0, 1].")
    if gamma == 1:
        return a
    return a**gamma / (a**gamma + (1 - a) ** gamma) ** (1 / gamma)


@_like_input
def decision_weights(z: Values, human: Human = Human(), probability: Values = None) -> Values:
    """ω_i of each outcome, [n] in the order of z.

    Gain (z_i ≥ z0): Ω⁺(P(Z ≥ z_i)) − Ω⁺(P(Z > z_i)); loss: Ω⁻(P(Z ≤ z_i)) − Ω⁻(P(Z < z_i)). Outcomes of equal value share the weight
    of that value in proportion to their probability. The weights sum to Ω⁺(P(gain)) + Ω⁻(P(loss)), which is not 1 unless γ = 1.
    """
    probability = _probability(z, probability)
    levels, level_of = z.unique(return_inverse=True)
    mass = torch.zeros_like(levels).index_add(0, level_of, probability)
    # Divided by the last sum, so that certainty is exactly 1: Ω is infinitely steep there.
    at_most = mass.cumsum(0) / mass.cumsum(0)[-1]
    below = torch.cat([at_most.new_zeros(1), at_most[:-1]])
    at_least = (mass.flip(0).cumsum(0) / mass.flip(0).cumsum(0)[-1]).flip(0)
    above = torch.cat([at_least[1:], at_least.new_zeros(1)])
    gains = capacity(at_least, human.gamma_gain) - capacity(above, human.gamma_gain)
    losses = capacity(at_most, human.gamma_loss) - capacity(below, human.gamma_loss)
    weight = torch.where(levels >= human.z0, gains, losses)
    share = probability / torch.where(mass > 0, mass, 1.0)[level_of]
    return weight[level_of] * share


def _probability(z: Tensor, probability: Values) -> Tensor:
    if z.ndim != 1 or not len(z):
        raise DataError(f"outcomes have shape {tuple(z.shape)}: expected a list of at least one number.")
    if probability is None:
        return torch.full_like(z, 1 / len(z))
    probability = _tensor(probability)
    # A softmax in float32 sums to 1 within about 1e-7 only.
    if probability.shape != z.shape or (probability < 0).any() or abs(probability.sum().item() - 1) > 1e-6:
        raise DataError(f"probabilities of {len(z)} outcomes: expected as many, none below 0, summing to 1.")
    return probability / probability.sum()


def utility(z: Values, human: Human = Human(), probability: Values = None) -> float:
    """u(Z; ω) = Σ ω_i v(z_i): the subjective utility of a distribution of outcomes."""
    z = _tensor(z)
    return float((decision_weights(z, human, probability) * value(z, human)).sum())


class Perception(NamedTuple):
    """How far objective weights lie from a person's, on the same outcomes."""

    kl: float
    """KL(ω‖Q), nats: ω the person's weights normalised to sum to 1, Q the objective ones; inf where Q misses an outcome"""
    bound: float
    """δ of Proposition 3.4: √2 ‖v‖_∞ √KL, which |u(Z; ω) − u(Z; Q)| cannot exceed"""
    gap: float
    """|u(Z; ω) − u(Z; Q)| itself, ω normalised"""


def perception(z: Values, weight: Values = None, human: Human = Human(), probability: Values = None) -> Perception:
    """Proposition 3.4 for outcomes z: weights ω (default: the person's own decision weights) against the probabilities Q.

    By Pinsker's inequality |Σ (ω_i − q_i) v(z_i)| ≤ ‖v‖_∞ ‖ω − q‖₁ ≤ √2 ‖v‖_∞ √KL(ω‖Q).
    """
    z = _tensor(z)
    q = _probability(z, probability)
    omega = decision_weights(z, human, probability) if weight is None else _tensor(weight)
    if omega.shape != z.shape or (omega < 0).any() or not omega.sum() > 0:
        raise DataError(f"weights of {len(z)} outcomes: expected as many, none below 0, not all 0.")
    omega = omega / omega.sum()
    kl = max(float(torch.where(omega > 0, omega * (omega / q).log(), 0.0).sum()), 0.0)
    v = value(z, human)
    return Perception(kl, math.sqrt(2 * kl) * float(v.abs().max()), abs(float(((omega - q) * v).sum())))


class Curve(NamedTuple):
    """A line on the axes objective cumulative mass (x) against perceived cumulative mass (y), both from 0 to 1, [m]."""

    objective: Values
    perceived: Values


@_like_input
def human_curve(z: Values, human: Human = Human()) -> Curve:
    """a = P(Z ≤ z) of the policy's own samples against the cumulative decision weights, normalised to end at 1: an inverted S."""
    weight = decision_weights(z, human)
    return _curve(z, z, weight / weight.sum())


@_like_input
def implied_capacity(z: Values, z_sampler: Values) -> Curve:
    """a = P(Z ≤ z) of the policy's own samples against the share of a sampler's completions with Z ≤ z_a.

    Both measured under the current policy. The policy's own samples give the diagonal; a worse sampler's curve lies above it (its
    surprisals are too low, it saturates too fast), a better one's below.
    """
    _probability(z, None)
    sampled = _tensor(z_sampler)
    return _curve(z, sampled, _probability(sampled, None))


def _curve(z: Tensor, outcomes: Tensor, weight: Tensor) -> Curve:
    levels, counts = z.unique(return_counts=True)
    objective = counts.double().cumsum(0) / len(z)
    order = outcomes.argsort(stable=True)
    zero = objective.new_zeros(1)
    cumulative = torch.cat([zero, weight[order].cumsum(0)])
    perceived = cumulative[torch.searchsorted(outcomes[order], levels, right=True)]
    return Curve(torch.cat([zero, objective]), torch.cat([zero, perceived]))


def beta_draws(gamma: float, size: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
    """Beta(γ, 1) by inverse CDF, u^(1/γ) with u uniform in (0, 1]; float64. Mean γ/(γ + 1)."""
    if not 0 < gamma < math.inf:
        raise ConfigError(f"gamma is {gamma}: expected a finite number above 0.")
    uniform = 1 - torch.rand(size, generator=generator, dtype=torch.float64)
    return uniform ** (1 / gamma)


def surviving_interval(
    gamma_policy: float, gamma_reference: float, scale_policy: float, scale_reference: float
) -> tuple[float, float]:
    """Theorem 4.3: when both Betas concentrate on their means, ratios π_θ/π_ref in [M_P E[B_P], 1/(M_R E[B_R])] are never rejected.

    With M_P E[B_P] = 1 − ε and M_R E[B_R] = 1/(1 + ε) that is PPO's and GRPO's clipping range [1 − ε, 1 + ε].
    """
    low = scale_policy * gamma_policy / (gamma_policy + 1)
    return low, (gamma_reference + 1) / (scale_reference * gamma_reference)
