"""How sure a mean over problems or instructions is. What belongs together, the samples of one problem, is one value here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from humanline import randomness
from humanline.errors import ConfigError

LEVEL = 0.95
"""of every interval"""
RESAMPLES = 10_000
"""of a bootstrap over means"""
CELLS = 2**22
"""numbers drawn at once"""


class Estimate(NamedTuple):
    """A mean over clusters. From one cluster nothing but the mean can be told: the rest is None then."""

    mean: float
    standard_error: float | None
    """standard deviation of the clusters' values (n − 1) over √n"""
    low: float | None
    """of a 95 % percentile bootstrap that redraws whole clusters; None where all are alike, of which it would make a width of 0"""
    high: float | None
    clusters: int


def estimate(values: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """The mean of one value per cluster, at least one. The order of values changes nothing, not even a bit."""
    ordered = np.sort(np.asarray(values, np.float64))
    count = len(ordered)
    mean = math.fsum(ordered) / count
    if count == 1:
        return Estimate(mean, None, None, None, 1)
    if ordered[0] == ordered[-1]:
        return Estimate(mean, 0.0, None, None, count)
    spread = math.sqrt(math.fsum((ordered - mean) ** 2) / (count - 1))
    means = [ordered[drawn].mean(1) for drawn in redraws(count, seed=seed, resamples=resamples)]
    low, high = interval(np.concatenate(means))
    return Estimate(mean, spread / math.sqrt(count), low, high, count)


def redraws(count: int, *, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """Indices of `resamples` bootstrap samples of `count` clusters, in parts of [some, count]."""
    if resamples < 1:
        raise ConfigError(f"resamples is {resamples}: expected a whole number from 1 on.")
    generator = randomness.generator(seed, "bootstrap", count)
    part = max(CELLS // count, 1)
    for start in range(0, resamples, part):
        yield generator.integers(count, size=(min(part, resamples - start), count))


def interval(draws: np.ndarray) -> tuple[float, float]:
    """The central 95 % of bootstrap draws."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
