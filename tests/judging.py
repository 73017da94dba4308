"""A judge in tests: items to ask about, and their verdicts from a real HTTP server on loopback."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from humanline.score import Item, Judge, Verdict
from humanline.score.judge import JudgeScorer
from judge_server import Answer, JudgeServer, serving

QUESTION = Item("What is the capital of France?", "Paris.")


def items(count: int) -> list[Item]:
    return [Item(f"Question {number}?", f"Answer {number}.") for number in range(count)]


def asked_about(body: dict[str, Any]) -> int | None:
    """The number of the item that a request is about; None for the first call, which only tries the judge."""
    found = re.search(r"Answer (\d+)\.", body["messages"][0]["content"])
    return int(found[1]) if found else None


def judge(server: JudgeServer, **settings: Any) -> JudgeScorer:
    return JudgeScorer(Judge(model="stub", base_url=server.url, **{"backoff": 0.01, "retries": 2, **settings}))


def verdicts(
    answer: Callable[[int, dict[str, Any]], Answer], asked: list[Item], **settings: Any
) -> tuple[list[Verdict], JudgeServer]:
    with serving(answer) as server, judge(server, **settings) as scorer:
        return scorer.verdicts(asked), server
