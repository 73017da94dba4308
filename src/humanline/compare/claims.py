"""What the runs say about each claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from humanline.compare.statistics import Difference, difference, holm, interval, p_above, p_different, p_equal
from humanline.compare.study import Claim
from humanline.errors import nearest

Values = Mapping[str, Mapping[str, Sequence[float]]]
"""method → metric → values by seed"""


@dataclass(frozen=True)
class ClaimResult:
    """A claim, its test and a plain verdict. Numbers are None where there is no test; `verdict` then says why."""

    claim: Claim
    effect: float | None
    """mean(a) − mean(b), in units of the metric"""
    interval: tuple[float, float] | None
    """of the effect, for this claim alone: what it leaves out, the uncorrected test at level alpha rejects"""
    level: float
    """of the interval: 1 − alpha for a two-sided test, 1 − 2 alpha for one-sided ones"""
    p: float | None
    holm_p: float | None
    """corrected for the number of claims"""
    shown: bool | None
    """holm_p is below alpha; None = not tested"""
    verdict: str


def judge(claims: Sequence[Claim], values: Values, *, seeds: int, alpha: float) -> list[ClaimResult]:
    """Test all claims together. A claim is tested only where both methods have all their seeds: runs do not fail at random."""
    reasons = [_not_testable(claim, values, seeds) for claim in claims]
    tested = [
        None if reason else difference(values[claim.a][claim.metric], values[claim.b][claim.metric])
        for claim, reason in zip(claims, reasons, strict=True)
    ]
    p_values = [found and _p_value(claim, found) for claim, found in zip(claims, tested, strict=True)]
    return [_result(*parts, alpha=alpha) for parts in zip(claims, tested, p_values, holm(p_values), reasons, strict=True)]


def _not_testable(claim: Claim, values: Values, seeds: int) -> str:
    """Why there is no test; "" where there is one, unless no value varies."""
    for method in (claim.a, claim.b):
        measured = values.get(method, {})
        found = measured.get(claim.metric, ())
        if not found:
            return f"no run of {method} has {claim.metric}{nearest(claim.metric, measured)}"
        if len(found) < seeds:
            return f"{seeds - len(found)} of the {seeds} runs of {method} are missing, and runs do not fail at random"
    return "one seed a method: two or more are needed" if seeds < 2 else ""


def _p_value(claim: Claim, found: Difference) -> float:
    if claim.kind == "equal":
        assert claim.margin is not None, "checked by Claim"
        return p_equal(found, claim.margin)
    return p_different(found) if claim.kind == "different" else p_above(found.reversed if claim.lower else found)


def _result(
    claim: Claim, found: Difference | None, p: float | None, holm_p: float | None, reason: str, *, alpha: float
) -> ClaimResult:
    level = 1 - alpha if claim.kind == "different" else 1 - 2 * alpha
    if found is None or holm_p is None:
        reason = reason or "no spread: every seed gave its method the same value"
        return ClaimResult(claim, None, None, level, None, None, None, f"not tested: {reason}")
    shown = holm_p < alpha
    verdict = (_SHOWN if shown else _NOT_SHOWN)[claim.kind](claim)
    return ClaimResult(claim, found.effect, interval(found, level), level, p, holm_p, shown, verdict)


_SHOWN: dict[str, Callable[[Claim], str]] = {
    "better": lambda claim: f"shown: {claim.a} is {'lower' if claim.lower else 'higher'} than {claim.b}",
    "different": lambda claim: f"shown: {claim.a} and {claim.b} differ",
    "equal": lambda claim: f"shown: {claim.a} and {claim.b} are equal within ±{claim.margin:g}",
}
_NOT_SHOWN: dict[str, Callable[[Claim], str]] = {
    "better": lambda claim: f"not shown: {claim.a} may not be {'lower' if claim.lower else 'higher'} than {claim.b}",
    "different": lambda claim: "not shown: the difference may be chance, which does not make them equal",
    "equal": lambda claim: f"not shown: the difference may exceed ±{claim.margin:g}",
}
