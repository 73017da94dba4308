"""Several scorers as one reward, and every failure counted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from humanline.data.rows import Place
from humanline.errors import ConfigError, ScoringError
from humanline.score import Item, Scorer, Verdict
from humanline.score.config import Function, Math, OnError
from humanline.score.weighted import Part, Tally, Weighted

BOOM = ZeroDivisionError("boom")


class Stub(Scorer):
    """Gives what it was told to."""

    def __init__(self, label: str, verdicts: list[Verdict]) -> None:
        self.label, self.given, self.closed = label, verdicts, False

    def verdicts(self, items: Sequence[Item]) -> list[Verdict]:
        return self.given

    def close(self) -> None:
        self.closed = True


def items(count: int) -> list[Item]:
    return [Item("Q?", "A.", place=Place("rows.jsonl", number + 1)) for number in range(count)]


def weighted(*parts: tuple[list[Verdict], float, OnError]) -> Weighted:
    return Weighted([Part(Stub(f"s{number}", given), weight, on_error) for number, (given, weight, on_error) in enumerate(parts)])


def test_the_reward_is_the_weighted_sum() -> None:
    """8 · 1 + 1 · 0.5 + 1 · (−2) = 6.5, as accuracy, format and a penalty may be weighted."""
    scorer = weighted(([Verdict(1.0)], 8.0, "skip"), ([Verdict(0.5)], 1.0, "skip"), ([Verdict(-2.0)], 1.0, "skip"))
    assert scorer.score(items(1)) == [6.5]
    assert scorer.sheet(items(1)).parts == {"s0": [Verdict(1.0)], "s1": [Verdict(0.5)], "s2": [Verdict(-2.0)]}


def test_R26_a_completion_that_one_part_cannot_score_is_unscored() -> None:
    scorer = weighted(([Verdict(1.0), Verdict(None, "raised", "boom")], 1.0, "skip"), ([Verdict(3.0), Verdict(3.0)], 1.0, "skip"))
    assert scorer.verdicts(items(2)) == [Verdict(4.0), Verdict(None, "unscored by s0", "raised")]


def test_R26_unless_that_part_counts_it_as_zero_and_then_the_reason_stays() -> None:
    scorer = weighted(([Verdict(None, "raised", "boom")], 1.0, "zero"), ([Verdict(3.0)], 1.0, "skip"))
    sheet = scorer.sheet(items(1))
    assert sheet.rewards == [Verdict(3.0)]
    assert sheet.parts["s0"] == [Verdict(0.0, "raised", "boom")]


def test_R26_or_stops_with_place_and_cause() -> None:
    scorer = weighted(([Verdict(1.0), Verdict(None, "raised", "boom (f.py:2)", BOOM)], 1.0, "raise"))
    with pytest.raises(
        ScoringError, match=r"^rows\.jsonl:2: s0 cannot score it: raised: boom \(f\.py:2\)\.\n  on_error is raise"
    ) as caught:
        scorer.score(items(2))
    assert caught.value.__cause__ is BOOM


def test_a_part_of_weight_zero_is_shown_and_takes_no_part() -> None:
    scorer = weighted(([Verdict(None, "raised")], 0.0, "skip"), ([Verdict(3.0)], 2.0, "skip"))
    sheet = scorer.sheet(items(1))
    assert sheet.rewards == [Verdict(6.0)]
    assert sheet.parts["s0"] == [Verdict(None, "raised")]


def test_a_sum_beyond_all_numbers_is_no_reward() -> None:
    scorer = weighted(([Verdict(1e308)], 10.0, "skip"))
    assert scorer.score(items(1)) == [None]


def test_closing_closes_the_parts() -> None:
    parts = [Part(Stub(f"s{number}", []), 1.0, "skip") for number in range(2)]
    with Weighted(parts):
        pass
    assert all(part.scorer.closed for part in parts)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "there is no scorer"),
        ([("a", 1.0), ("a", 1.0)], "two scorers are called 'a'. Expected at least one, and each with a `label` of its own"),
        ([("a", 0.0)], "every weight is 0"),
    ],
)
def test_what_is_no_reward_is_refused(parts: list[tuple[str, float]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Weighted([Part(Stub(label, []), weight, "skip") for label, weight in parts])


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_a_weight_is_a_finite_number(weight: float) -> None:
    with pytest.raises(ConfigError, match=r"scorer\.weight is (nan|inf): expected a finite number"):
        Function(weight=weight)
    assert Math(weight=-1.0).weight == -1.0


def test_a_tally_counts_scored_zeroed_and_each_kind_of_failure_with_its_first_place() -> None:
    verdicts = [
        Verdict(1.0, note="answer 2"),
        Verdict(None, "timeout", "after 5 s"),
        Verdict(0.0, "raised", "boom"),
        Verdict(None, "timeout", "after 5 s"),
        Verdict(0.5),
    ]
    tally = Tally()
    tally.add(items(5)[:2], verdicts[:2])
    tally.add(items(5)[2:], verdicts[2:])
    assert tally.lines("math") == [
        "math: scored 3 of 5, 1 of them as 0 by on_error, mean 0.500",
        "  timeout: 2 (first rows.jsonl:2: after 5 s)",
        "  raised: 1 (rows.jsonl:3: boom)",
    ]
    nothing = Tally()
    nothing.add([Item("Q?", "A.")], [Verdict(None, "NaN")])
    assert nothing.lines("f") == ["f: scored 0 of 1", "  NaN: 1"]
