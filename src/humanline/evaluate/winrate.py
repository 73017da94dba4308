"""Win rate of a model over a baseline, in percent.

A preference is the probability that the model's output is the better one: 1 it wins, 0 the baseline wins, 0.5 a tie, None no verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from humanline.errors import DataError
from humanline.evaluate.statistics import estimate


class WinRate(NamedTuple):
    """Everything over judged instructions only, in percent where not a count."""

    win_rate: float
    """mean preference: a tie counts half, a judge's probability counts as it is"""
    standard_error: float | None
    """standard deviation (n − 1) over √n; None for a single instruction, like the interval"""
    low: float | None
    """of the 95 % bootstrap interval over instructions; None where all preferences are equal"""
    high: float | None
    discrete_win_rate: float
    """wins and half the ties: each preference rounded to the side it is on"""
    wins: int
    losses: int
    ties: int
    judged: int
    missing: int
    """instructions without a verdict"""


def win_rate(preferences: Sequence[float | None], *, seed: int = 0) -> WinRate:
    """Raises `DataError` for a preference outside [0, 1], and when there is none at all. Their order changes nothing."""
    check_preferences([preference for preference in preferences if preference is not None])
    judged = [preference for preference in preferences if preference is not None]
    if not judged:
        raise DataError(f"none of {len(preferences)} instructions has a verdict, so there is no win rate.")
    mean, error, low, high, _ = estimate([100 * preference for preference in judged], seed=seed)
    wins = sum(preference > 0.5 for preference in judged)
    ties = sum(preference == 0.5 for preference in judged)
    discrete = 100 * (wins + ties / 2) / len(judged)
    losses = len(judged) - wins - ties
    return WinRate(mean, error, low, high, discrete, wins, losses, ties, len(judged), len(preferences) - len(judged))


def check_preferences(preferences: Sequence[float]) -> None:
    """`DataError` for one that is no probability."""
    for preference in preferences:
        if not 0 <= preference <= 1:
            raise DataError(f"a preference is {preference!r}: expected a number from 0 (baseline better) to 1 (model better).")
