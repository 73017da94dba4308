"""Which of two outputs is better, by a judge that compares them or by a scorer that scores each."""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from humanline.evaluate.annotations import Annotation
from humanline.evaluate.config import WinRateConfig
from humanline.evaluate.outputs import Output, Pair
from humanline.metrics import duration
from humanline.score.comparison import Contest, PairJudge
from humanline.score.config import Judge
from humanline.score.item import Item, Verdict
from humanline.score.weighted import build

CHUNK = 64
"""pairs judged between two looks at the clock"""
EVERY_SECONDS = 10.0
SAME = "same output"
"""the mode of a tie that nobody was asked about"""
ORDERS = {"first as A": "model first", "second as A": "baseline first"}


class Annotator(ABC):
    """Judges pairs of outputs. Equal outputs are a tie without being judged."""

    name: str

    def annotate(self, pairs: Sequence[Pair], say: Callable[[str], None]) -> list[Annotation]:
        """One annotation per pair, in order; says now and then how far it is."""
        judged: dict[int, Annotation] = {}
        different = [number for number, pair in enumerate(pairs) if pair.model.output != pair.baseline.output]
        started = shown = time.perf_counter()
        for start in range(0, len(different), CHUNK):
            part = different[start : start + CHUNK]
            judged |= zip(part, self._judge([pairs[number] for number in part]), strict=True)
            now = time.perf_counter()
            if now - shown >= EVERY_SECONDS and len(judged) < len(different):
                left = duration((now - started) / len(judged) * (len(different) - len(judged)))
                say(f"judging: {len(judged)}/{len(different)} pairs, ETA {left}")
                shown = now
        return [judged.get(number) or Annotation(pair, 0.5, self.name, modes=(SAME,)) for number, pair in enumerate(pairs)]

    @abstractmethod
    def _judge(self, pairs: Sequence[Pair]) -> list[Annotation]:
        """The same for pairs whose outputs differ."""

    def check(self) -> None:  # noqa: B027 - most are known to work once they are loaded
        """Find out whether judging is possible before anything is spent on it."""

    def facts(self) -> dict[str, Any]:
        """What verdicts depend on besides the settings."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Give back processes, connections and files."""


class JudgeAnnotator(Annotator):
    """A language model that sees both outputs, in an order that follows from the seed and the instruction."""

    def __init__(self, config: WinRateConfig, settings: Judge, folder: Path) -> None:
        if settings.jobs is None:
            settings = dataclasses.replace(settings, jobs=str(folder / "judgements.jsonl"))
        self.name = settings.label or settings.model
        self.judge = PairJudge(settings, order=config.order, seed=config.judge_seed, instructions=config.criteria)

    def check(self) -> None:
        self.judge.check()

    def close(self) -> None:
        self.judge.close()

    def _judge(self, pairs: Sequence[Pair]) -> list[Annotation]:
        found = self.judge.compare([Contest(pair.model.instruction, pair.model.output, pair.baseline.output) for pair in pairs])
        return [
            Annotation(pair, each.first, self.name, tuple(ORDERS[order] for order in each.orders), each.modes, each.why)
            for pair, each in zip(pairs, found, strict=True)
        ]


class ScoreAnnotator(Annotator):
    """A reward model, or a function: the output with the higher score is preferred, equal scores are a tie."""

    def __init__(self, config: WinRateConfig) -> None:
        self.scorer = build([config.scorer])
        self.name = self.scorer.parts[0].scorer.label

    def facts(self) -> dict[str, Any]:
        return self.scorer.parts[0].scorer.facts()

    def close(self) -> None:
        self.scorer.close()

    def _judge(self, pairs: Sequence[Pair]) -> list[Annotation]:
        verdicts = self.scorer.verdicts([_item(side) for pair in pairs for side in pair])
        return [_compared(pair, self.name, *verdicts[2 * number : 2 * number + 2]) for number, pair in enumerate(pairs)]


def _item(output: Output) -> Item:
    return Item(
        output.instruction, output.output, row={"instruction": output.key, "generator": output.generator}, place=output.place
    )


def _compared(pair: Pair, name: str, model: Verdict, baseline: Verdict) -> Annotation:
    if model.score is None or baseline.score is None:
        missing = model if model.score is None else baseline
        return Annotation(pair, None, name, why=f"{missing.why}: {missing.note}")
    return Annotation(pair, (model.score > baseline.score) + 0.5 * (model.score == baseline.score), name, modes=("score",))


def annotator(config: WinRateConfig, folder: Path) -> Annotator:
    """What the settings choose, ready to judge."""
    return JudgeAnnotator(config, config.scorer, folder) if isinstance(config.scorer, Judge) else ScoreAnnotator(config)
