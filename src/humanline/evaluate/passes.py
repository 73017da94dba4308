"""pass@k and best-of-n: what several completions of a problem are worth.

A completion is right (1), wrong (0), or has no verdict (None): the verifier ran out of time, or the gold answer is not readable. Those
without a verdict take no part, as if they had not been drawn, and are counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from humanline.errors import ConfigError, DataError
from humanline.evaluate.statistics import Estimate, estimate

Verdicts = Sequence[float | None]
"""of the completions of one problem: 1 right, 0 wrong, None no verdict"""


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 − C(n − c, k) / C(n, k): how probably at least one of k completions is right, drawn without replacement from n, c of them right.

    The unbiased estimate of pass@k from n ≥ k samples of a problem (Chen et al. 2021, arXiv 2107.03374, equation 1).
    """
    if not 1 <= k <= n:
        raise ConfigError(
            f"k is {k} for {n} completions: expected a whole number from 1 to {n}. Draw more completions, or lower k."
        )
    if not 0 <= c <= n:
        raise DataError(f"{c} of {n} completions are right: expected a count from 0 to {n}.")
    return 1 - math.comb(n - c, k) / math.comb(n, k)


class Rate(NamedTuple):
    """A rate over problems with what it leaves out."""

    value: Estimate
    left_out: int
    """problems that have too few verdicts for it"""


def pass_rate(problems: Sequence[Verdicts], k: int = 1, *, seed: int = 0) -> Rate:
    """The mean of `pass_at_k` over problems; for k = 1 the mean share of right completions. Standard errors are clustered by problem.

    Raises `DataError` when no problem has k verdicts.
    """
    given = [[verdict for verdict in verdicts if verdict is not None] for verdicts in map(_checked, problems)]
    values = [pass_at_k(len(verdicts), int(sum(verdicts)), k) for verdicts in given if len(verdicts) >= k]
    if not values:
        raise DataError(f"pass@{k}: none of {len(problems)} problems has {k} completions with a verdict.")
    return Rate(estimate(values, seed=seed), len(problems) - len(values))


def best_of_n(problems: Sequence[Verdicts], scores: Sequence[Sequence[float | None]], *, seed: int = 0) -> Rate:
    """How often the completion with the highest score is right, e.g. the one that a reward model likes best.

    Of completions with equal highest scores each counts in part. A completion without score takes no part; a problem without any
    score, or without a verdict on its best completion, is left out.
    """
    if [len(each) for each in problems] != [len(each) for each in scores]:
        raise DataError(
            f"{len(problems)} problems and {len(scores)} lists of scores: expected a score, or null, for each completion of each problem."
        )
    values = []
    for verdicts, of_problem in zip(map(_checked, problems), scores, strict=True):
        best = max((score for score in of_problem if score is not None), default=None)
        chosen = [verdict for verdict, score in zip(verdicts, of_problem, strict=True) if score is not None and score == best]
        if chosen and None not in chosen:
            values.append(math.fsum(verdict for verdict in chosen if verdict is not None) / len(chosen))
    if not values:
        raise DataError(f"best-of-n: none of {len(problems)} problems has a verdict on its best completion.")
    return Rate(estimate(values, seed=seed), len(problems) - len(values))


def _checked(verdicts: Verdicts) -> Verdicts:
    for verdict in verdicts:
        if verdict not in (None, 0, 1):
            raise DataError(
                f"a verdict is {verdict!r}: expected 1 for right, 0 for wrong, or null. pass@k knows nothing in between."
            )
    return verdicts
