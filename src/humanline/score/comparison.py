"""Which of two answers a judge prefers, with the order in which it saw them under control.

Judges lean to a position. With order `one` a draw per instruction decides which answer is shown as A; with `both` the judge sees
both orders and a disagreement is a tie, so that a judge who always says A prefers neither. The order is kept with each judgement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from humanline import randomness
from humanline.data.rows import Text
from humanline.data.turns import as_turns
from humanline.score.bench import Bench, Question
from humanline.score.chat import Reply, Unanswered
from humanline.score.config import Judge
from humanline.score.jobs import content_key
from humanline.score.judge_prompt import comparing_prompt
from humanline.score.judge_reply import find_choice, weigh

COMPARE = (
    "You compare two answers of an assistant to the end of a conversation. Decide which one is better: more correct, complete and "
    "helpful for what the user asked, and clearer. Length and order are no merit."
)
Shown = Literal["first as A", "second as A"]


@dataclass(frozen=True, slots=True)
class Contest:
    """Two answers to one prompt."""

    prompt: Text
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Preference:
    """How much better the first answer is, or why nobody knows."""

    first: float | None
    """1 the first is preferred, 0 the second, 0.5 a tie; between them the probability under weighted judging. None: missing"""
    orders: tuple[Shown, ...]
    """in which the judge saw the answers"""
    modes: tuple[str, ...] = ()
    """number = a letter as written, weighted = by token probabilities; one per order"""
    why: str = ""
    """of a missing one"""


class PairJudge:
    """Compares answers. `settings.low` and `high` play no part; `settings.instructions` is replaced by `instructions`."""

    def __init__(
        self, settings: Judge, *, order: Literal["one", "both"] = "both", seed: int = 0, instructions: str = COMPARE
    ) -> None:
        self.settings, self.order, self.seed, self.instructions = settings, order, seed, instructions
        self.bench = Bench(settings, self._read, self._prompt(Contest("What is 2 + 2?", "4", "5"), "first as A"))

    def compare(self, contests: Sequence[Contest]) -> list[Preference]:
        """One preference per contest, in order."""
        orders = [self.orders(contest.prompt) for contest in contests]
        questions = [
            Question(self._prompt(contest, shown), {"order": shown})
            for contest, shows in zip(contests, orders, strict=True)
            for shown in shows
        ]
        answers = iter(self.bench.answers(questions))
        return [_preference(shows, [next(answers) for _ in shows]) for shows in orders]

    def check(self) -> None:
        """Try the judge now, by a first call. `ServerError` if it cannot judge."""
        self.bench.check()

    def orders(self, prompt: Text) -> tuple[Shown, ...]:
        """In which order the answers to a prompt are shown: a function of the seed and the prompt."""
        if self.order == "both":
            return ("first as A", "second as A")
        where = int(content_key([dict(turn) for turn in as_turns(prompt, "user")])[:15], 16)
        return ("second as A",) if randomness.generator(self.seed, "order of answers", where).integers(2) else ("first as A",)

    def close(self) -> None:
        """Give back connections and the job file."""
        self.bench.close()

    def _prompt(self, contest: Contest, shown: Shown) -> str:
        answers = (contest.first, contest.second) if shown == "first as A" else (contest.second, contest.first)
        return comparing_prompt(
            self.instructions, as_turns(contest.prompt, "user"), answers, letter=self.settings.mode == "weighted"
        )

    def _read(self, reply: Reply) -> dict[str, Any]:
        found = find_choice(reply.text, ("A", "B"))
        written = {"score": float(found.value == "A"), "mode": "number", "reason": found.reason}
        if self.settings.mode == "number":
            return written
        score = weigh(reply.tokens, reply.text, found.position, {"A": 1.0, "B": 0.0})
        if score is not None:
            return {**written, "score": score, "mode": "weighted"}
        if self.settings.fallback:
            return written
        raise Unanswered("no log-probs", "the reply has none for its choice. Set fallback to take the letter as written")


def _preference(orders: tuple[Shown, ...], answers: Sequence[dict[str, Any] | Unanswered]) -> Preference:
    """The mean over the orders: of two verdicts that disagree, a tie."""
    missing = [answer for answer in answers if isinstance(answer, Unanswered)]
    if missing:
        return Preference(None, orders, why=str(missing[0]))
    given = [answer for answer in answers if isinstance(answer, dict)]
    for_first = [
        answer["score"] if shown == "first as A" else 1 - answer["score"] for shown, answer in zip(orders, given, strict=True)
    ]
    return Preference(sum(for_first) / len(for_first), orders, tuple(answer["mode"] for answer in given))
