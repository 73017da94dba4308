"""Several scorers as one reward: the weighted sum of their scores, with every failure counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from humanline.data.rows import Place
from humanline.errors import ConfigError, ScoringError
from humanline.score.config import OnError, ScorerConfig
from humanline.score.item import Item, Scorer, Verdict


class Part(NamedTuple):
    """One scorer and what it counts for."""

    scorer: Scorer
    weight: float
    on_error: OnError


class Sheet(NamedTuple):
    """What a number of completions got."""

    rewards: list[Verdict]
    parts: dict[str, list[Verdict]]
    """by label; where `on_error: zero` filled in a 0, `why` still says what was the matter"""

    def cut(self, start: int, end: int) -> Sheet:
        """The part from one completion to another."""
        return Sheet(self.rewards[start:end], {label: verdicts[start:end] for label, verdicts in self.parts.items()})


class Weighted(Scorer):
    """reward = Σ weight · score. A completion that one part cannot score is unscored, unless that part counts it as 0."""

    def __init__(self, parts: Sequence[Part], *, label: str = "reward") -> None:
        labels = [part.scorer.label for part in parts]
        repeated = next((name for name in labels if labels.count(name) > 1), None)
        if not parts or repeated is not None:
            problem = f"two scorers are called {repeated!r}" if parts else "there is no scorer"
            raise ConfigError(f"scorers: {problem}. Expected at least one, and each with a `label` of its own.")
        if all(part.weight == 0 for part in parts):
            raise ConfigError("scorers: every weight is 0, so every reward would be. Expected at least one other weight.")
        self.parts, self.label = tuple(parts), label

    def sheet(self, items: Sequence[Item]) -> Sheet:
        """Scores by part and the rewards. Raises `ScoringError` for a failure in a part with `on_error: raise`."""
        parts = {part.scorer.label: self._scored(part, items) for part in self.parts}
        weights = {part.scorer.label: part.weight for part in self.parts}
        rewards = [_reward(weights, {label: parts[label][index] for label in parts}) for index in range(len(items))]
        return Sheet(rewards, parts)

    def verdicts(self, items: Sequence[Item]) -> list[Verdict]:
        return self.sheet(items).rewards

    def close(self) -> None:
        for part in self.parts:
            part.scorer.close()

    def _scored(self, part: Part, items: Sequence[Item]) -> list[Verdict]:
        verdicts = part.scorer.verdicts(items)
        assert len(verdicts) == len(items), f"{part.scorer.label} gave {len(verdicts)} verdicts for {len(items)} items"
        if part.on_error == "skip":
            return verdicts
        for item, verdict in zip(items, verdicts, strict=True):
            if verdict.score is None and part.on_error == "raise":
                raise ScoringError(
                    f"{item.place or 'a completion'}: {part.scorer.label} cannot score it: {verdict.why}"
                    f"{': ' + verdict.note if verdict.note else ''}.\n  on_error is raise; with skip it would stay unscored."
                ) from verdict.error
        return [
            Verdict(0.0, verdict.why, verdict.note, verdict.error) if verdict.score is None else verdict for verdict in verdicts
        ]


def _reward(weights: dict[str, float], verdicts: dict[str, Verdict]) -> Verdict:
    counted = {label: weight for label, weight in weights.items() if weight != 0}
    missing = [label for label in counted if verdicts[label].score is None]
    if missing:
        return Verdict(None, f"unscored by {missing[0]}", verdicts[missing[0]].why)
    total = math.fsum(weight * (verdicts[label].score or 0.0) for label, weight in counted.items())
    return Verdict(total) if math.isfinite(total) else Verdict(None, "infinite", "the weighted sum is beyond all numbers")


def build(configs: Sequence[ScorerConfig]) -> Weighted:
    """The scorers of a configuration as one."""
    return Weighted([Part(config.build(), config.weight, config.on_error) for config in configs])


@dataclass
class Failure:
    """One kind of failure of one scorer."""

    count: int = 0
    place: Place | None = None
    """of the first"""
    note: str = ""
    """of the first"""


@dataclass
class Tally:
    """Counts of what a scorer gave, over any number of sheets."""

    items: int = 0
    scored: int = 0
    zeroed: int = 0
    """of the scored, those that could not be scored and count as 0"""
    total: float = 0.0
    failures: dict[str, Failure] = field(default_factory=dict)

    def add(self, items: Sequence[Item], verdicts: Sequence[Verdict]) -> None:
        """Count the verdicts on items."""
        for item, verdict in zip(items, verdicts, strict=True):
            self.items += 1
            if verdict.score is not None:
                self.scored += 1
                self.total += verdict.score
                self.zeroed += bool(verdict.why)
            if verdict.why:
                failure = self.failures.setdefault(verdict.why, Failure(0, item.place, verdict.note))
                failure.count += 1

    def lines(self, label: str) -> list[str]:
        """E.g. `math: scored 5 of 7, mean 0.400`, then a line per kind of failure."""
        mean = f", mean {self.total / self.scored:.3f}" if self.scored else ""
        zeroed = f", {self.zeroed} of them as 0 by on_error" if self.zeroed else ""
        lines = [f"{label}: scored {self.scored} of {self.items}{zeroed}{mean}"]
        for why, failure in sorted(self.failures.items(), key=lambda entry: -entry[1].count):
            first = f" ({'first ' if failure.count > 1 else ''}{failure.place}" if failure.place else " ("
            note = f"{': ' if failure.place else ''}{failure.note}" if failure.note else ""
            lines.append(f"  {why}: {failure.count}{first}{note})" if failure.place or note else f"  {why}: {failure.count}")
        return lines
