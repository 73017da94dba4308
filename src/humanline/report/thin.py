"""Long series made short enough to draw: each bucket of steps keeps its mean, its lowest and its highest value."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from humanline.report.elements import Numbers


class Series(NamedTuple):
    """One metric of one run. NaN: the step has a value that is no finite number."""

    steps: Numbers
    values: Numbers


class Buckets(NamedTuple):
    """A series in buckets of `size` steps; size 1 is the series itself."""

    steps: Numbers
    """middle of each bucket"""
    mean: Numbers
    low: Numbers
    high: Numbers
    size: int


def buckets(series: Series, most: int) -> Buckets:
    """At most `most` buckets of equally many values (the last may hold fewer). Values that are not finite take no part."""
    steps, values = series
    size = max(-(-len(values) // most), 1)
    if size == 1:
        return Buckets(steps, values, values, values, 1)
    starts = np.arange(0, len(values), size)
    ends = np.append(starts[1:], len(values)) - 1
    finite = np.isfinite(values)
    count = np.add.reduceat(finite.astype(float), starts)
    scale = 0.5 ** size.bit_length()  # a power of 2 rounds nothing, and the sum of huge values does not overflow
    total = np.add.reduceat(np.where(finite, values, 0.0) * scale, starts)
    mean = np.where(count > 0, total / np.maximum(count, 1) / scale, np.nan)
    low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
    return Buckets((steps[starts] + steps[ends]) / 2, mean, low, high, size)


def mean_of(runs: Sequence[Series]) -> Series:
    """Mean over runs at the steps that all of them have; NaN where one of them is."""
    steps = reduce(np.intersect1d, [series.steps for series in runs])
    values = [series.values[np.isin(series.steps, steps)] for series in runs]
    return Series(steps, np.mean(values, axis=0))
