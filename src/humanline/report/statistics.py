"""Mean, spread and comparison of a few runs each: Student's interval and Welch's test."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

CONFIDENCE = 0.95


class Spread(NamedTuple):
    """Of n ≥ 1 values."""

    n: int
    mean: float
    std: float | None
    """sample standard deviation (n − 1); None for a single value"""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        # stdev computes exactly: equal values have a spread of 0, not of a rounding error.
        return cls(len(values), statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    @property
    def half_interval(self) -> float | None:
        """Half the width of the 95 % interval of the mean, t_{n−1} · std/√n; None for a single value."""
        if self.std is None:
            return None
        from scipy.special import stdtrit

        return float(stdtrit(self.n - 1, (1 + CONFIDENCE) / 2)) * self.std / math.sqrt(self.n)


def welch(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Two-sided p-value of Welch's t-test that two means are equal (variances may differ).

    None where the test does not exist: fewer than two values on a side, or no spread on either.
    """
    if min(len(first), len(second)) < 2:
        return None
    ours, theirs = Spread.of(first), Spread.of(second)
    errors = [spread.std**2 / spread.n for spread in (ours, theirs) if spread.std is not None]
    error = sum(errors)
    if not error:
        return None
    from scipy.special import stdtr

    freedom = error**2 / sum(part**2 / (spread.n - 1) for part, spread in zip(errors, (ours, theirs), strict=True))
    return float(2 * stdtr(freedom, -abs(ours.mean - theirs.mean) / math.sqrt(error)))
