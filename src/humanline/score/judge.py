"""A language model as judge of single answers, on a scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from humanline.data.record import listed
from humanline.data.turns import Turns
from humanline.score.bench import Bench, Question
from humanline.score.chat import Reply, Unanswered
from humanline.score.config import Judge
from humanline.score.conversation import turns_of_item
from humanline.score.item import Item, Scorer, Verdict
from humanline.score.judge_prompt import grading_prompt
from humanline.score.judge_reply import find_score, weigh

PROBE: Turns = ({"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"})


class JudgeScorer(Scorer):
    """Grades the last turn. A judgement that fails stays missing, is counted, and is asked for again by the next run."""

    def __init__(self, settings: Judge) -> None:
        self.settings = settings
        self.label = settings.label or settings.name
        self.bench = Bench(settings, self._read, grading_prompt(settings, PROBE, {}))

    def verdicts(self, items: Sequence[Item]) -> list[Verdict]:
        """The note says which mode a score came by, and the judge's reason."""
        asked = [self._question(item) for item in items]
        answers = iter(self.bench.answers([question for question in asked if isinstance(question, Question)]))
        return [question if isinstance(question, Verdict) else _verdict(next(answers)) for question in asked]

    def close(self) -> None:
        self.bench.close()

    def _question(self, item: Item) -> Question | Verdict:
        missing = [name for name in self.settings.show if item.row.get(name) is None]
        if missing:
            return Verdict(None, "no such column", f"scorer.show has {missing[0]!r} (columns: {listed(item.row)})")
        columns = {name: item.row[name] for name in self.settings.show}
        return Question(grading_prompt(self.settings, turns_of_item(item), columns))

    def _read(self, reply: Reply) -> dict[str, Any]:
        found = find_score(reply.text, self.settings.low, self.settings.high)
        if self.settings.mode == "number":
            return {"score": found.value, "mode": "number", "reason": found.reason}
        digits = {str(digit): float(digit) for digit in range(int(self.settings.low), int(self.settings.high) + 1)}
        score = weigh(reply.tokens, reply.text, found.position, digits)
        if score is not None:
            return {"score": score, "mode": "weighted", "reason": found.reason}
        if self.settings.fallback:
            return {"score": found.value, "mode": "number", "reason": found.reason}
        raise Unanswered("no log-probs", "the reply has none for its score. Use --scorer.fallback to take the number as written")


def _verdict(answer: dict[str, Any] | Unanswered) -> Verdict:
    if isinstance(answer, Unanswered):
        return Verdict(None, answer.why, answer.note, answer)
    return Verdict(answer["score"], note=f"{answer['mode']}: {answer['reason']}" if answer["reason"] else answer["mode"])
