"""Student's interval and Welch's test, against values worked by hand and against SciPy's own implementations."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from humanline.report.statistics import Spread, welch


def test_interval_of_three_seeds() -> None:
    """1, 2, 4: mean 7/3, variance ((16 + 1 + 25)/9)/2 = 7/3, t(0.975, 2) = 4.30265, half = 4.302653 · √(7/9) = 3.79458."""
    spread = Spread.of([1.0, 2.0, 4.0])
    assert (spread.n, spread.mean, spread.std) == (3, pytest.approx(7 / 3), pytest.approx((7 / 3) ** 0.5))
    assert spread.half_interval == pytest.approx(3.79458, abs=1e-5)


def test_welch_by_hand() -> None:
    """1, 2, 3 against 4, 6: means 2 and 5, s²/n 1/3 and 1, t = 3/√(4/3) = 2.59808, freedom (4/3)²/((1/3)²/2 + 1²/1) = 32/19."""
    expected = 2 * scipy.stats.t.sf(2.598076, 32 / 19)
    assert welch([1.0, 2.0, 3.0], [4.0, 6.0]) == pytest.approx(expected, rel=1e-6)


values = st.lists(st.floats(-1e3, 1e3).map(lambda value: round(value, 3)), min_size=2, max_size=6)


@given(values, values)
def test_agrees_with_scipy(first: list[float], second: list[float]) -> None:
    p = welch(first, second)
    assert welch(second, first) == p
    if np.ptp(first) == 0 or np.ptp(second) == 0:  # where SciPy warns of cancellation
        assert (p is None) == (np.ptp(first) == np.ptp(second) == 0)
        return
    assert p == pytest.approx(scipy.stats.ttest_ind(first, second, equal_var=False).pvalue, rel=1e-6, abs=1e-12)
    low, high = scipy.stats.t.interval(0.95, len(first) - 1, np.mean(first), scipy.stats.sem(first))
    assert Spread.of(first).half_interval == pytest.approx((high - low) / 2, rel=1e-9)


def test_equal_values_have_no_spread_at_all() -> None:
    """0.1 + 0.1 + 0.1 is not 0.3 in floating point: a mean off by a rounding error must not become a p-value."""
    assert Spread.of([0.1] * 3).std == 0 and Spread.of([0.1] * 3).half_interval == 0
    assert welch([0.1] * 3, [0.7] * 3) is None


def test_a_single_run_has_no_spread_and_no_test() -> None:
    assert Spread.of([0.5]) == Spread(1, 0.5, None) and Spread.of([0.5]).half_interval is None
    assert welch([0.5], [0.1, 0.2]) is None and welch([0.1, 0.2], [0.5]) is None
