"""Welch, TOST and Holm against closed forms, scipy and their own symmetries."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from humanline.compare.statistics import difference, holm, interval, p_above, p_different, p_equal
from humanline.report.statistics import welch

VALUES = st.lists(st.integers(-50, 50).map(lambda n: n / 8), min_size=2, max_size=6)
P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def test_two_values_a_side_by_hand() -> None:
    """[0, 2] and [3, 5]: both variances are 2, so SE² = 2/2 + 2/2 = 2 and ν = 2² / (1 + 1) = 2; d = −3.

    T_2(t) = 1/2 + t / (2√(2 + t²)) with t = −3/√2: two-sided 1 − (3/√2)/√6.5, above 1/2 + (3/√2)/(2√6.5). Equality within 4: the
    nearer bound has t = (4 − 3)/√2, so p = 1/2 − (1/√2)/(2√2.5). T_2⁻¹(q) = (2q − 1)/√(2q(1 − q)), at 0.95: 0.9/√0.095.
    """
    found = difference([0, 2], [3, 5])
    assert found == (-3, pytest.approx(math.sqrt(2), rel=1e-15), pytest.approx(2, rel=1e-15))
    share = 3 / math.sqrt(2) / math.sqrt(6.5)
    assert p_different(found) == pytest.approx(1 - share, rel=1e-12)
    assert p_above(found) == pytest.approx(0.5 + share / 2, rel=1e-12)
    assert p_above(found.reversed) == pytest.approx(0.5 - share / 2, rel=1e-12)
    assert p_equal(found, 4) == pytest.approx(0.5 - 1 / math.sqrt(2) / (2 * math.sqrt(2.5)), rel=1e-12)
    half = 0.9 / math.sqrt(0.095) * math.sqrt(2)
    assert interval(found, 0.9) == pytest.approx((-3 - half, -3 + half), rel=1e-9)


def test_unequal_sizes_and_variances_by_hand() -> None:
    """[1, 2, 3] and [2, 4, 6, 8]: s²/n = 1/3 and 5/3, so SE² = 2 and ν = 4 / ((1/9)/2 + (25/9)/3) = 216/53; d = 2 − 5."""
    found = difference([1, 2, 3], [2, 4, 6, 8])
    assert found == (-3, pytest.approx(math.sqrt(2), rel=1e-15), pytest.approx(216 / 53, rel=1e-14))


def test_one_side_without_a_spread() -> None:
    """[1, 1] and [0, 1, 2]: all variance is the second's, s²/n = 1/3, and so are the degrees of freedom, n − 1 = 2."""
    assert difference([1, 1], [0, 1, 2]) == (0, pytest.approx(math.sqrt(1 / 3), rel=1e-15), 2)


@given(VALUES, VALUES)
def test_welch_s_test_and_interval_are_scipy_s(a: list[float], b: list[float]) -> None:
    assume(len(set(a)) > 1 and len(set(b)) > 1)  # scipy warns of values without a spread
    found = difference(a, b)
    assert found is not None
    theirs = stats.ttest_ind(a, b, equal_var=False)
    assert p_different(found) == pytest.approx(theirs.pvalue, rel=1e-9)
    assert p_different(found) == pytest.approx(welch(a, b), rel=1e-9)
    assert p_above(found) == pytest.approx(stats.ttest_ind(a, b, equal_var=False, alternative="greater").pvalue, rel=1e-9)
    assert interval(found, 0.95) == pytest.approx(tuple(theirs.confidence_interval(0.95)), rel=1e-9, abs=1e-12)


@given(VALUES, VALUES, st.floats(0.01, 20))
def test_equivalence_is_symmetric_and_is_two_one_sided_tests(a: list[float], b: list[float], margin: float) -> None:
    assume(len(set(a)) > 1 and len(set(b)) > 1)
    ours, theirs = difference(a, b), difference(b, a)
    assert ours is not None and theirs is not None
    assert p_equal(ours, margin) == pytest.approx(p_equal(theirs, margin), rel=1e-9)
    low = stats.ttest_ind([value + margin for value in a], b, equal_var=False, alternative="greater").pvalue
    high = stats.ttest_ind([value - margin for value in a], b, equal_var=False, alternative="less").pvalue
    assert p_equal(ours, margin) == pytest.approx(max(low, high), rel=1e-6, abs=1e-12)


@given(VALUES, VALUES, st.floats(0.01, 20), st.sampled_from([0.01, 0.05, 0.2]))
def test_intervals_are_dual_to_their_tests(a: list[float], b: list[float], margin: float, alpha: float) -> None:
    """p < α exactly where the interval leaves out 0 (different), lies above 0 (better), lies within ± margin (equal)."""
    found = difference(a, b)
    if found is None:
        return
    low, high = interval(found, 1 - alpha)
    assert (p_different(found) < alpha) == (low > 0 or high < 0)
    low, high = interval(found, 1 - 2 * alpha)
    assert (p_above(found) < alpha) == (low > 0)
    assert (p_equal(found, margin) < alpha) == (-margin < low and high < margin)


@given(VALUES, VALUES)
def test_a_wider_margin_makes_equality_easier_to_show(a: list[float], b: list[float]) -> None:
    found = difference(a, b)
    if found is None:
        return
    values = [p_equal(found, margin) for margin in (0.1, 1, 10, 1000)]
    assert all(wider <= narrower for narrower, wider in itertools.pairwise(values))
    assert values[-1] < 0.5 <= max(p_equal(found, abs(found.effect)), 0.5)


@pytest.mark.parametrize(("a", "b"), [([1], [2, 3]), ([1, 2], [3]), ([], [1, 2]), ([1, 1], [2, 2])])
def test_without_a_spread_there_is_no_test(a: list[float], b: list[float]) -> None:
    assert difference(a, b) is None


def test_a_tiny_spread_does_not_underflow() -> None:
    """Variances near 1e-320 squared are 0 in float64; the shares of them are not. Equal ones of two values each: ν = 2."""
    found = difference([0, 1e-155], [0, 1e-155])
    assert found is not None and found.freedom == pytest.approx(2, rel=1e-6) and p_different(found) == 1


def test_holm_by_hand() -> None:
    """m = 4: 0.01 · 4 = 0.04, 0.013 · 3 = 0.039 but not below 0.04, 0.02 · 2 = 0.04, 0.6 · 1."""
    assert holm([0.02, 0.01, 0.6, 0.013]) == pytest.approx([0.04, 0.04, 0.6, 0.04])


@given(P_VALUES)
def test_holm_keeps_the_order_and_only_raises(values: list[float]) -> None:
    corrected = holm(values)
    assert all(0 <= p <= c <= 1 for p, c in zip(values, corrected, strict=True) if c is not None)
    order = sorted(range(len(values)), key=lambda number: values[number])
    assert all(corrected[first] <= corrected[second] for first, second in itertools.pairwise(order))
    smallest = min(values)
    assert corrected[values.index(smallest)] == min(1.0, smallest * len(values))


@given(P_VALUES, st.integers(0, 3))
def test_holm_counts_what_could_not_be_tested(values: list[float], missing: int) -> None:
    """As if its p-value were 1: nothing gets easier to show when a claim cannot be tested."""
    corrected = holm([*values, *[None] * missing])
    assert corrected == [*holm([*values, *[1.0] * missing])[: len(values)], *[None] * missing]


@given(P_VALUES)
def test_holm_is_never_above_bonferroni(values: list[float]) -> None:
    assert all(c is not None and c <= min(1.0, p * len(values)) for p, c in zip(values, holm(values), strict=True))
