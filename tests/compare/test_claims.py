"""From values by seed to verdicts."""

from __future__ import annotations

import pytest

from humanline.compare.claims import judge
from humanline.compare.statistics import difference, p_above, p_different, p_equal
from humanline.compare.study import Claim
from humanline.errors import ConfigError

HIGH, LOW, SAME = [0.9, 0.91, 0.92], [0.5, 0.52, 0.51], [0.901, 0.911, 0.921]
VALUES = {"a": {"score": HIGH}, "b": {"score": LOW}, "c": {"score": SAME}}


def verdicts(*claims: Claim, values=VALUES, seeds: int = 3, alpha: float = 0.05):
    return judge(claims, values, seeds=seeds, alpha=alpha)


def test_each_kind_has_its_test_and_all_are_corrected_together() -> None:
    better, different, equal = verdicts(
        Claim("a", "b", "score", "better"), Claim("a", "b", "score", "different"), Claim("a", "c", "score", "equal", 0.05)
    )
    assert better.p == p_above(difference(HIGH, LOW)) and different.p == p_different(difference(HIGH, LOW)) == 2 * better.p
    assert equal.p == p_equal(difference(HIGH, SAME), 0.05)
    assert better.holm_p == pytest.approx(3 * better.p) and different.holm_p == pytest.approx(2 * different.p)
    assert equal.holm_p == equal.p
    assert [claim.verdict for claim in (better, different, equal)] == [
        "shown: a is higher than b", "shown: a and b differ", "shown: a and c are equal within ±0.05",
    ]  # fmt: skip
    assert (better.level, different.level, equal.level) == (0.9, 0.95, 0.9)
    assert better.effect == pytest.approx(0.4) and better.interval[0] < 0.4 < better.interval[1]


def test_the_wrong_direction_shows_nothing() -> None:
    (higher,) = verdicts(Claim("b", "a", "score", "better"))
    (lower,) = verdicts(Claim("b", "a", "score", "better", lower=True))
    assert higher.shown is False and higher.p > 0.999 and higher.verdict == "not shown: b may not be higher than a"
    assert lower.shown is True and lower.p == pytest.approx(1 - higher.p) and lower.verdict == "shown: b is lower than a"


def test_no_difference_is_not_equality() -> None:
    different, equal = verdicts(Claim("a", "c", "score"), Claim("a", "c", "score", "equal", 0.01))
    assert different.verdict == "not shown: the difference may be chance, which does not make them equal"
    assert equal.shown is False and equal.verdict == "not shown: the difference may exceed ±0.01"


def test_what_one_claim_shows_many_may_not() -> None:
    """p ≈ 0.02 alone is below 0.05; among four claims it is corrected to 0.08."""
    values = {"a": {"score": [1.0, 2.0, 3.0]}, "b": {"score": [4.0, 5.0, 6.0]}}
    (alone,) = verdicts(Claim("a", "b", "score"), values=values)
    assert alone.p == pytest.approx(0.0213, abs=1e-4) and alone.shown
    four = verdicts(*[Claim("a", "b", "score")] * 4, values=values)
    assert all(claim.holm_p == pytest.approx(4 * alone.p) and not claim.shown for claim in four)


@pytest.mark.parametrize(
    ("values", "seeds", "verdict"),
    [
        ({"a": {"score": [1.0]}, "b": {"score": [2.0]}}, 1, "one seed a method: two or more are needed"),
        (
            {"a": {"score": [1.0, 2.0]}, "b": {"score": [1.0, 2.0, 3.0]}}, 3,
            "1 of the 3 runs of a are missing, and runs do not fail at random",
        ),
        ({"a": {"score": [1.0, 2.0]}, "b": {}}, 2, "no run of b has score"),
        ({"a": {"score": [1.0, 1.0]}, "b": {"score": [2.0, 2.0]}}, 2, "no spread: every seed gave its method the same value"),
    ],
)  # fmt: skip
def test_where_there_is_no_test_the_verdict_says_why(values, seeds: int, verdict: str) -> None:
    (found,) = verdicts(Claim("a", "b", "score"), values=values, seeds=seeds)
    assert found.verdict == f"not tested: {verdict}"
    assert (found.effect, found.interval, found.p, found.holm_p, found.shown) == (None, None, None, None, None)


def test_an_untested_claim_still_counts() -> None:
    tested, untested = verdicts(Claim("a", "b", "score"), Claim("a", "b", "other"))
    assert untested.shown is None and tested.holm_p == pytest.approx(2 * tested.p)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(b="a"), "b is a: expected another method than a."),
        (dict(kind="equal"), "margin is null: expected the largest difference that counts as equal, above 0 and in units of the metric."),
        (dict(kind="equal", margin=0.0), "margin is 0.0: expected the largest difference"),
        (dict(kind="equal", margin=float("nan")), "margin is nan: expected the largest difference"),
        (dict(kind="better", margin=0.1), "margin is 0.1 while kind is better: expected kind equal. Leave it out."),
        (dict(lower=True), "lower is true while kind is different: expected kind better, the only one with a direction."),
    ],
)  # fmt: skip
def test_claims_that_make_no_sense_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Claim(**dict(a="a", b="b", metric="score") | changes)
    assert str(error.value).startswith(message)
