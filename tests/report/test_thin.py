"""Thinning keeps what a reader looks for: the mean, and every extreme."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from humanline.report.thin import Series, buckets, mean_of

number_or_nan = st.one_of(st.floats(-1e6, 1e6), st.just(math.nan))


def series(values: list[float], steps: list[int] | None = None) -> Series:
    return Series(np.array(steps or range(1, len(values) + 1), float), np.array(values, float))


def test_two_buckets_by_hand() -> None:
    thinned = buckets(series([1, 5, 3, math.nan, -2]), 2)
    assert thinned.size == 3
    assert thinned.steps.tolist() == [2.0, 4.5]
    assert (thinned.mean.tolist(), thinned.low.tolist(), thinned.high.tolist()) == ([3.0, -2.0], [1.0, -2.0], [5.0, -2.0])


def test_a_short_series_is_itself() -> None:
    given_series = series([1, math.nan, 2])
    thinned = buckets(given_series, 3)
    assert thinned.size == 1 and np.array_equal(thinned.mean, given_series.values, equal_nan=True)


def test_a_bucket_without_a_finite_value_is_a_gap() -> None:
    thinned = buckets(series([math.nan, math.nan, 1, 2]), 2)
    assert np.isnan([thinned.mean[0], thinned.low[0], thinned.high[0]]).all() and thinned.mean[1] == 1.5


@given(st.lists(number_or_nan, min_size=1, max_size=300), st.integers(1, 40))
def test_the_band_holds_every_value_and_no_extreme_is_lost(values: list[float], most: int) -> None:
    thinned = buckets(series(values), most)
    assert len(thinned.mean) <= most
    assert math.ceil(len(values) / thinned.size) == len(thinned.mean)
    array = np.array(values)
    for number, (low, mean, high) in enumerate(zip(thinned.low, thinned.mean, thinned.high, strict=True)):
        inside = array[number * thinned.size : (number + 1) * thinned.size]
        finite = inside[np.isfinite(inside)]
        if len(finite):
            assert (low, high) == (finite.min(), finite.max()) and mean == pytest.approx(finite.mean(), rel=1e-9, abs=1e-9)
        else:
            assert np.isnan([low, mean, high]).all()


def test_mean_over_runs_at_the_steps_that_all_have() -> None:
    mean = mean_of([series([1, 2, 3]), series([5, math.nan], [2, 3])])
    assert mean.steps.tolist() == [2.0, 3.0]
    assert mean.values[0] == 3.5 and math.isnan(mean.values[1])
    assert len(mean_of([series([1]), series([1], [9])]).steps) == 0


def test_the_mean_of_huge_values_does_not_overflow() -> None:
    assert buckets(series([1.5e308, 1.7e308, -1.7e308, -1.7e308]), 2).mean == pytest.approx([1.6e308, -1.7e308])
