"""Means over clusters and how sure they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from humanline.errors import ConfigError
from humanline.evaluate import estimate

VALUES = st.lists(st.floats(0, 1), min_size=2, max_size=12)


def test_mean_and_standard_error_by_hand() -> None:
    """Values 0, 0, 1: mean 1/3, variance (1/9 + 1/9 + 4/9)/2 = 1/3, standard error √(1/3)/√3 = 1/3."""
    found = estimate([0, 1, 0])
    assert found.mean == pytest.approx(1 / 3, abs=1e-15)
    assert found.standard_error == pytest.approx(1 / 3, abs=1e-15)
    assert found.clusters == 3


@given(VALUES, st.randoms(use_true_random=False))
def test_order_changes_no_bit(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert estimate(shuffled, resamples=50) == estimate(values, resamples=50)


@given(VALUES)
def test_the_interval_holds_resampled_means(values: list[float]) -> None:
    """Equal values have none: it would have a width of 0, as if ten times right were always right."""
    found = estimate(values, resamples=200)
    assert (found.low is None) == (found.high is None) == (min(values) == max(values))
    if found.low is not None and found.high is not None:
        assert min(values) - 1e-12 <= found.low <= found.high <= max(values) + 1e-12


def test_the_interval_of_many_values_is_the_normal_one() -> None:
    """Central limit theorem: about mean ± 1.96 standard errors."""
    values = np.random.default_rng(0).random(2000).tolist()
    mean, error, low, high, _ = estimate(values)
    assert error is not None and low is not None and high is not None
    assert low == pytest.approx(mean - 1.96 * error, abs=0.05 * error)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.05 * error)


def test_the_same_seed_gives_the_same_interval_and_another_one_another() -> None:
    values = [0.1, 0.7, 0.4, 0.9]
    assert estimate(values, seed=1) == estimate(values, seed=1)
    assert estimate(values, seed=1)[:2] == estimate(values, seed=2)[:2]
    assert (
        estimate([0.11, 0.7, 0.43, 0.95], seed=1, resamples=9)[2:4] != estimate([0.11, 0.7, 0.43, 0.95], seed=2, resamples=9)[2:4]
    )


def test_parts_of_a_large_bootstrap_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn in parts of one resample or all together: the same draws."""
    values = [0.1, 0.7, 0.4, 0.9, 0.2]
    whole = estimate(values, resamples=64)
    monkeypatch.setattr("humanline.evaluate.statistics.CELLS", 5)
    assert estimate(values, resamples=64) == whole


def test_one_cluster_has_no_spread() -> None:
    assert estimate([0.25]) == (0.25, None, None, None, 1)


def test_resamples_are_at_least_one() -> None:
    with pytest.raises(ConfigError, match=r"^resamples is 0: expected a whole number from 1 on\.$"):
        estimate([0.0, 1.0], resamples=0)


def test_sums_are_exact() -> None:
    """0.1 ten times is 0.1, not 0.09999999999999999."""
    assert estimate([0.1] * 10).mean == 0.1
    assert math.isclose(estimate([1e-9, 1.0]).mean, 0.5000000005, rel_tol=0, abs_tol=1e-18)
