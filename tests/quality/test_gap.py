"""The perception gap: distributions that are equal by construction, limits, a case by hand, the bound."""

from __future__ import annotations

import numpy as np
import pytest

from humanline import prospect
from humanline.errors import DataError
from humanline.quality.gap import Outcomes, perception_gap, ratios, relative
from humanline.quality.likelihood import Logp
from humanline.quality.show import gap_lines


def logps(rng: np.random.Generator, prompts: int, size: int, shift: float = 0.0) -> list[list[Logp]]:
    """Of completions of uneven length; each prompt has a level of its own, which the gap must not see."""
    level = np.random.default_rng(7).normal(scale=5.0, size=prompts)
    tokens = rng.integers(3, 9, size=(prompts, size)).tolist()
    means = (level[:, None] + shift + rng.normal(size=(prompts, size))).tolist()
    return [[Logp(mean * n, n) for mean, n in zip(row, lengths, strict=True)] for row, lengths in zip(means, tokens, strict=True)]


def outcomes(axis: list[float], fresh: list[float], data: list[float]) -> Outcomes:
    """Of one prompt."""
    return Outcomes((np.array(axis),), (np.array(fresh),), (np.array(data),))


def test_relative_outcomes_by_hand() -> None:
    fresh = [[Logp(-2.0, 2), Logp(-9.0, 3), Logp(-4.0, 2), Logp(-10.0, 2)]]  # −1, −3, −2, −5 a token
    found = relative([[Logp(-8.0, 4)]], fresh)
    np.testing.assert_allclose(found.axis[0], [-1 + 10 / 3, -2 + 9 / 3])
    np.testing.assert_allclose(found.fresh[0], [-3 + 8 / 3, -5 + 6 / 3])
    np.testing.assert_allclose(found.data[0], [-2 + 6 / 3])


def test_own_samples_have_outcomes_distributed_as_fresh_ones() -> None:
    """Same mean and variance, 1 + 1/(n − 1) here, for the model's own data as for fresh samples, whatever the prompts' levels."""
    rng = np.random.default_rng(0)
    found = relative(logps(rng, 4000, 3), logps(rng, 4000, 6))
    for part in (found.axis, found.fresh, found.data):
        z = np.concatenate(part)
        assert z.mean() == pytest.approx(0, abs=0.04)
        assert z.var() == pytest.approx(1 + 1 / 5, rel=0.04)


def test_own_samples_lie_on_the_diagonal_and_worse_ones_above_it() -> None:
    rng = np.random.default_rng(1)
    fresh = logps(rng, 600, 8)
    own, worse, better = (perception_gap(relative(logps(rng, 600, 4, shift), fresh), seed=0) for shift in (0.0, -0.7, 0.7))
    assert abs(own.data.lean) < 0.03 < 0.15 < worse.data.lean and better.data.lean < -0.15
    assert abs(np.subtract(own.curves["data"].objective, own.curves["data"].perceived)).max() < 0.06
    assert (worse.curves["data"].perceived - worse.curves["data"].objective).min() >= -1e-9
    assert own.data.kl == pytest.approx(own.axis.kl, abs=4 * own.data.kl_error + 0.01)
    assert own.fresh.kl == pytest.approx(own.axis.kl, abs=4 * own.fresh.kl_error + 0.01)
    assert worse.data.kl > own.data.kl + 4 * own.data.kl_error


def test_everything_below_or_above_the_models_own_outcomes_leans_by_half() -> None:
    axis = [float(value) for value in range(-10, 10)]
    assert perception_gap(outcomes(axis, axis, [-20.0] * 5), seed=0).data.lean == 0.5
    assert perception_gap(outcomes(axis, axis, [20.0] * 5), seed=0).data.lean == -0.5
    assert perception_gap(outcomes(axis, axis, axis), seed=0).data.lean == 0.0


def test_distance_of_a_case_by_hand() -> None:
    """Two outcomes, −1 and 1, each with mass ½: two bins. Human weights Ω⁻(½) and Ω⁺(½) over their sum; three completions below and one
    above give Q = (3.5, 1.5)/5."""
    found = perception_gap(outcomes([-1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0, -3.0, 2.0]), seed=0)
    weight = np.array([float(prospect.capacity(np.array([0.5]), gamma)[0]) for gamma in (0.69, 0.61)])
    omega, q = weight / weight.sum(), np.array([0.7, 0.3])
    kl = float((omega * np.log(omega / q)).sum())
    assert found.data.kl == pytest.approx(kl, abs=1e-12)
    assert found.data.bound == pytest.approx(np.sqrt(2 * kl) * 2.25, abs=1e-12)
    assert found.data.utility_gap == pytest.approx(abs((omega - q) @ np.array([-2.25, 1.0])), abs=1e-12)
    assert found.axis.kl == pytest.approx(float((omega * np.log(omega / 0.5)).sum()), abs=1e-12)


def test_the_bound_holds_for_every_sampler() -> None:
    rng = np.random.default_rng(2)
    for scale in (0.1, 1.0, 30.0):
        parts = [tuple(rng.normal(loc, scale, size=(20, 4))) for loc in (0.0, 0.0, rng.normal())]
        found = perception_gap(Outcomes(*parts), seed=0)
        for part in (found.data, found.fresh, found.axis):
            assert part.utility_gap <= part.bound and part.kl >= 0 and part.kl_error > 0


def test_objective_perception_sees_no_distance_to_the_model_itself() -> None:
    """γ = 1: the human weights are the probabilities, so the axis is at KL 0 from itself but for the half counts."""
    axis = [float(value) for value in range(-50, 50)]
    found = perception_gap(outcomes(axis, axis, axis), 0, prospect.Human(gamma_gain=1.0, gamma_loss=1.0))
    assert found.axis.kl == pytest.approx(0, abs=1e-5) and perception_gap(outcomes(axis, axis, axis), 0).axis.kl > 0.05


def test_many_equal_outcomes_make_fewer_bins_and_no_infinity() -> None:
    found = perception_gap(outcomes([0.0] * 19 + [1.0], [0.0], [5.0, -5.0]), seed=0)
    assert np.isfinite([found.data.kl, found.fresh.kl, found.axis.kl]).all()


def test_a_model_without_variety_has_no_axis() -> None:
    with pytest.raises(DataError, match=r"^all 3 outcomes of fresh samples are 0: .*--fresh 0\.$"):
        perception_gap(outcomes([0.0] * 3, [0.0], [1.0]), seed=0)


def test_with_a_reference_outcomes_are_log_ratios_of_whole_completions() -> None:
    policy, fresh = [[Logp(-4.0, 2)]], [[Logp(-1.0, 1), Logp(-2.0, 1), Logp(-3.0, 1), Logp(-4.0, 1)]]
    reference, fresh_reference = [[Logp(-7.0, 2)]], [[Logp(-2.0, 1)] * 4]
    found = ratios(policy, reference, fresh, fresh_reference)
    assert [part[0].tolist() for part in (found.axis, found.fresh, found.data)] == [[1.0, -1.0], [0.0, -2.0], [3.0]]


def test_one_prompt_has_no_standard_error() -> None:
    one = (np.array([-1.0, 0.0, 1.0, 2.0]),)
    found = perception_gap(Outcomes(one, one, one), seed=0)
    assert found.data.kl_error is None
    assert "± –" in "\n".join(gap_lines(found, "nats"))
