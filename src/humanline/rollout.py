"""Fresh data as a source of steps: every S steps the prompts of the next S are sampled from the policy as it is, and scored.

S = 1 is online, S = 64 sparse; offline data is `humanline.data.feed.Rows`. What a window holds is written to RUN/rollouts, so that a
resumed run trains on the very same samples, and a person can read them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from humanline.data.plan import Plan
from humanline.data.rows import EncodedCompletion, EncodedGroup
from humanline.errors import CheckpointError, TrainingError
from humanline.sample.config import SampleConfig
from humanline.sample.prompts import Prompt
from humanline.sample.sampler import Sampled, Sampler
from humanline.score.item import Item, Scorer, Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Arrange = Callable[[EncodedGroup], list[EncodedGroup]]
"""what an objective trains on, out of a scored group: itself, one pair, or a labelled row a completion"""


@dataclass(frozen=True)
class Turn:
    """A prompt's turn in a step."""

    step: int
    number: int
    """of the turn in the run, from 0: it chooses the random streams, so no two turns of a prompt are alike"""
    prompt: Prompt


class Rollouts:
    """A `humanline.data.feed.Source` whose groups are the policy's own samples.

    `open(t)` must be called, with the policy as it is before step t, whenever `due(t)`.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        plan: Plan,
        every: int,
        last: int,
        arrange: Arrange,
        sampling: SampleConfig,
        sampler: Sampler,
        scorer: Scorer,
        tokenizer: PreTrainedTokenizerBase,
        folder: Path,
    ) -> None:
        self._prompts, self._plan, self._every, self._last, self._arrange = prompts, plan, every, last, arrange
        self._sampling, self._sampler, self._scorer, self._tokenizer = sampling, sampler, scorer, tokenizer
        self._folder = folder
        self._steps: dict[int, list[tuple[int, EncodedGroup]]] = {}
        self.horizon = 0
        self.seconds = {"sampling": 0.0, "scoring": 0.0}
        self.metrics: dict[str, float] = {}
        """of the window that is open: mean reward, share cut by the length limit, mean length, unscored"""

    def groups(self, t: int) -> list[tuple[int, EncodedGroup]]:
        """See `Source`; the number is the completion's place in the step."""
        return self._steps[t]

    def due(self, t: int) -> bool:
        """Whether step t needs a new window."""
        return t > self.horizon

    def open(self, t: int) -> None:
        """Sample and score the prompts of steps t … t+S−1."""
        turns = self._turns(t)
        started = time.perf_counter()
        sampled = self._sample(turns)
        between = time.perf_counter()
        verdicts = self._score(turns, sampled)
        self.seconds["sampling"] += between - started
        self.seconds["scoring"] += time.perf_counter() - between
        rows = [_row(turn, self._texts(group), group, scores) for turn, group, scores in zip(turns, sampled, verdicts, strict=True)]
        self._write(t, rows)
        self._take(turns, rows)

    def restore(self, t: int) -> None:
        """Go on within the window that step t belongs to, from what was written when it was opened."""
        first = (t - 1) // self._every * self._every + 1
        path = self._path(first)
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}. Step {t} trains on these samples; restore the file.") from error
        turns = self._turns(first)
        if [(row["step"], row["number"]) for row in rows] != [(turn.step, turn.number) for turn in turns]:
            raise CheckpointError(f"{path} does not hold the samples of steps {first} to {turns[-1].step}. Restore the file.")
        self._take(turns, rows)

    def _turns(self, first: int) -> list[Turn]:
        """The turns of the window that begins at step `first`."""
        steps = range(first, min(first + self._every, self._last + 1))
        return [
            Turn(step, (step - 1) * self._plan.batch_size + place, self._prompts[row])
            for step in steps
            for place, row in enumerate(self._plan.step(step))
        ]

    def _sample(self, turns: list[Turn]) -> list[tuple[Sampled, ...]]:
        drawn: dict[int, tuple[Sampled, ...]] = {}
        ids, numbers = [turn.prompt.ids for turn in turns], [turn.number for turn in turns]
        for index, completions in self._sampler.sample(ids, numbers=numbers, settings=self._sampling):
            drawn[index] = completions
        return [drawn[index] for index in range(len(turns))]

    def _texts(self, completions: tuple[Sampled, ...]) -> list[str]:
        return [
            self._tokenizer.decode(sampled.token_ids, skip_special_tokens=True) if sampled.text is None else sampled.text
            for sampled in completions
        ]

    def _score(self, turns: list[Turn], sampled: list[tuple[Sampled, ...]]) -> list[list[Verdict]]:
        items = [
            Item(turn.prompt.text, text, row=turn.prompt.others, finished=completion.finished, place=turn.prompt.place)
            for turn, completions in zip(turns, sampled, strict=True)
            for text, completion in zip(self._texts(completions), completions, strict=True)
        ]
        verdicts = iter(self._scorer.verdicts(items))
        return [[next(verdicts) for _ in completions] for completions in sampled]

    def _take(self, turns: list[Turn], rows: list[dict[str, Any]]) -> None:
        """Make the window's groups the data of its steps."""
        self._steps = {step: [] for step in range(turns[0].step, turns[-1].step + 1)}
        for turn, row in zip(turns, rows, strict=True):
            step = self._steps[turn.step]
            step.extend((len(step) + place, group) for place, group in enumerate(self._arrange(_group(turn, row))))
        self.horizon = turns[-1].step
        self.metrics = _window_metrics(rows)
        if not any(self._steps.values()):
            raise TrainingError(
                f"steps {turns[0].step} to {self.horizon}: none of the {len(turns)} groups can be trained on, since no two completions "
                "of a prompt have different scores, or none has a score. See the rollouts in the run directory."
            )

    def _path(self, first: int) -> Path:
        return self._folder / f"step-{first:06d}.jsonl"

    def _write(self, first: int, rows: list[dict[str, Any]]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f".step-{first:06d}.partial"
        partial.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        os.replace(partial, self._path(first))


def _row(turn: Turn, texts: list[str], completions: tuple[Sampled, ...], verdicts: list[Verdict]) -> dict[str, Any]:
    """A group as `humanline sample` and `score` write it, so that it can be read back as offline data too."""
    return {
        "step": turn.step,
        "number": turn.number,
        "prompt": turn.prompt.text if isinstance(turn.prompt.text, str) else [dict(message) for message in turn.prompt.text],
        "prompt_ids": turn.prompt.ids.tolist(),
        "completions": texts,
        "completion_ids": [None if sampled.token_ids is None else sampled.token_ids.tolist() for sampled in completions],
        "logprobs": [None if sampled.logps is None else sampled.logps.astype(float).tolist() for sampled in completions],
        "finish_reason": ["stop" if sampled.finished else "length" for sampled in completions],
        "rewards": [verdict.score for verdict in verdicts],
    }


def _group(turn: Turn, row: dict[str, Any]) -> EncodedGroup:
    parts = zip(row["completion_ids"], row["logprobs"], row["finish_reason"], row["rewards"], strict=True)
    return EncodedGroup(
        "group",
        np.array(row["prompt_ids"], np.int32),
        tuple(
            EncodedCompletion(
                np.array(ids, np.int32),
                np.ones(len(ids), bool),
                feedback=float("nan") if reward is None else float(reward),
                logps=None if logps is None else np.array(logps, np.float32),
                finished=reason == "stop",
            )
            for ids, logps, reason, reward in parts
        ),
        turn.prompt.place,
    )


def _window_metrics(rows: list[dict[str, Any]]) -> dict[str, float]:
    rewards = [reward for row in rows for reward in row["rewards"]]
    lengths = [len(ids) for row in rows for ids in row["completion_ids"]]
    scored = [reward for reward in rewards if reward is not None]
    cut = sum(reason == "length" for row in rows for reason in row["finish_reason"])
    return {
        "rollout_reward": sum(scored) / len(scored) if scored else float("nan"),
        "rollout_unscored": float(len(rewards) - len(scored)),
        "rollout_truncated": cut / len(rewards),
        "rollout_length": sum(lengths) / len(lengths),
    }

