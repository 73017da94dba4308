"""Two means of a few runs each: Welch's tests, equivalence, and Holm's correction over several of them.

d = mean(a) − mean(b);  SE² = s_a²/n_a + s_b²/n_b;  ν = SE⁴ / Σ (s²/n)²/(n − 1)  (Welch 1947, Satterthwaite 1946).  T_ν: Student's CDF.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from humanline.report.statistics import Spread


class Difference(NamedTuple):
    """Of two means, with how sure it is."""

    effect: float
    """mean(a) − mean(b)"""
    error: float
    """its standard error, > 0"""
    freedom: float
    """degrees of freedom of its t distribution"""

    @property
    def reversed(self) -> Difference:
        """mean(b) − mean(a)."""
        return self._replace(effect=-self.effect)


def difference(a: Sequence[float], b: Sequence[float]) -> Difference | None:
    """None where there is no test: fewer than two values on a side, or no spread on either."""
    if min(len(a), len(b)) < 2:
        return None
    ours, theirs = Spread.of(a), Spread.of(b)
    parts = [spread.std**2 / spread.n for spread in (ours, theirs) if spread.std is not None]
    variance = math.fsum(parts)
    if variance == 0:
        return None
    # Shares of the variance, as its square could underflow.
    shares = [part / variance for part in parts]
    freedom = 1 / math.fsum(share**2 / (len(side) - 1) for share, side in zip(shares, (a, b), strict=True))
    return Difference(ours.mean - theirs.mean, math.sqrt(variance), freedom)


def p_above(found: Difference) -> float:
    """One-sided p-value of H₀: mean(a) ≤ mean(b); 1 − T_ν(d/SE)."""
    from scipy.special import stdtr

    return float(stdtr(found.freedom, -found.effect / found.error))


def p_different(found: Difference) -> float:
    """Two-sided p-value of H₀: mean(a) = mean(b)."""
    from scipy.special import stdtr

    return float(2 * stdtr(found.freedom, -abs(found.effect) / found.error))


def p_equal(found: Difference, margin: float) -> float:
    """p-value of H₀: |mean(a) − mean(b)| ≥ margin, by two one-sided tests (TOST; Schuirmann 1987): the larger of theirs."""
    above_low = p_above(found._replace(effect=found.effect + margin))
    below_high = p_above(found._replace(effect=margin - found.effect))
    return max(above_low, below_high)


def interval(found: Difference, level: float) -> tuple[float, float]:
    """The central interval of the difference, d ± T_ν⁻¹((1 + level)/2) · SE."""
    from scipy.special import stdtrit

    half = float(stdtrit(found.freedom, (1 + level) / 2)) * found.error
    return found.effect - half, found.effect + half


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values corrected for their number (Holm 1979): the i-th smallest times m + 1 − i, at most 1, and no smaller than the one before.

    None, a claim that could not be tested, counts as 1: what is not known makes nothing else more certain.
    """
    order = sorted((p, number) for number, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, number) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(p_values) - rank)))
        corrected[number] = largest
    return corrected
