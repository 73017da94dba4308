"""Pairwise judging: the order of answers is under control and on record."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from humanline.score import Judge
from humanline.score.comparison import Contest, PairJudge, Preference
from judge_server import Answer, says, serving

CONTESTS = [Contest(f"Question {number}?", f"good {number}", f"bad {number}") for number in range(40)]


def shown(body: dict[str, Any]) -> tuple[str, str]:
    """The answers A and B of a request."""
    found = re.findall(r'<answer name="[AB]">\n(.*)\n</answer>', body["messages"][0]["content"])
    return found[0], found[1]


def prefers(letter: str) -> Answer:
    return says(json.dumps({"reason": "so", "better": letter}))


def pair_judge(url: str, **settings: Any) -> PairJudge:
    own = {name: settings.pop(name) for name in ("order", "seed") if name in settings}
    return PairJudge(Judge(model="stub", base_url=url, backoff=0.01, retries=0, **settings), **own)


def test_R41_a_judge_that_always_says_the_first_prefers_neither() -> None:
    with serving(lambda *_: prefers("A")) as server:
        judge = pair_judge(server.url, order="both")
        preferences = judge.compare(CONTESTS)
        judge.close()
    assert {preference.first for preference in preferences} == {0.5}
    assert preferences[0] == Preference(0.5, ("first as A", "second as A"), ("number", "number"))
    assert len(server.bodies) == 1 + 2 * len(CONTESTS)


def test_R41_a_fair_judge_gets_through_in_either_order() -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        return prefers("A" if shown(body)[0].startswith("good") or number == 0 else "B")

    with serving(answer) as server:
        for order in ("one", "both"):
            judge = pair_judge(server.url, order=order)
            assert {preference.first for preference in judge.compare(CONTESTS)} == {1.0}
            judge.close()


def test_R41_the_order_follows_from_seed_and_prompt_and_is_stored(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.jsonl"
    with serving(lambda *_: prefers("A")) as server:
        judge = pair_judge(server.url, order="one", seed=3, jobs=str(jobs))
        preferences = judge.compare(CONTESTS)
        assert judge.compare(CONTESTS[::-1]) == preferences[::-1]
        judge.close()
        other = pair_judge(server.url, order="one", seed=4)
        orders = [other.orders(contest.prompt) for contest in CONTESTS]
    first = sum(preference.orders == ("first as A",) for preference in preferences)
    assert 10 <= first <= 30
    assert sum(preference.first or 0 for preference in preferences) == first
    assert orders != [preference.orders for preference in preferences]
    stored = {json.loads(line)["key"]: json.loads(line)["order"] for line in jobs.read_text().splitlines()}
    assert sorted(stored.values()) == sorted(preference.orders[0] for preference in preferences)


def test_one_missing_judgement_of_two_leaves_the_comparison_missing() -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        return says("neither") if shown(body) == ("bad 1", "good 1") else prefers("A")

    with serving(answer) as server:
        judge = pair_judge(server.url)
        preferences = judge.compare(CONTESTS[:3])
        judge.close()
    assert [preference.first for preference in preferences] == [0.5, None, 0.5]
    assert preferences[1].why.startswith("out of format")


def test_R40_weighted_comparison_is_the_probability_of_the_letter() -> None:
    """p(A) : p(B) = 3 : 1 whatever is shown, so the first answer gets 0.75 as A, 0.25 as B, 0.5 over both."""
    reply = says("A", likely=[("A", {"A": math.log(0.6), "B": math.log(0.2), "C": math.log(0.2)})])
    with serving(lambda *_: reply) as server:
        both = pair_judge(server.url, order="both", mode="weighted", low=0.0, high=1.0)
        assert both.compare(CONTESTS[:1])[0].first == pytest.approx(0.5, abs=1e-12)
        one = pair_judge(server.url, order="one", mode="weighted", low=0.0, high=1.0)
        (preference,) = one.compare(CONTESTS[:1])
        expected = 0.75 if preference.orders == ("first as A",) else 0.25
        assert preference.first == pytest.approx(expected, abs=1e-12)
        assert preference.modes == ("weighted",)
        both.close()
        one.close()
