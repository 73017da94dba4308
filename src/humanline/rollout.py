"""Fresh data as a source of steps: every S steps the prompts of the next S are sampled from the policy as it is, and scored.

S = 1 is online, S = 64 sparse; offline data is `humanline.data.feed.Rows`. What a window holds is written to RUN/rollouts, so that a
resumed run trains on the very same samples, and a person can read them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from humanline.arrange import Arrange, arrange
from humanline.config import TrainConfig
from humanline.data.plan import Plan
from humanline.data.rows import EncodedCompletion, EncodedGroup
from humanline.errors import CheckpointError, TrainingError
from humanline.models import end_of_sequence_ids, positions
from humanline.objectives import Objective
from humanline.sample.config import PromptConfig
from humanline.sample.local import TransformersSampler
from humanline.sample.prompts import Prompt, load_prompts, prompt_room
from humanline.sample.sampler import Sampled, Sampler
from humanline.sample.served import ServedPolicy
from humanline.sample.settings import SampleConfig
from humanline.score.config import Judge, ScorerConfig
from humanline.score.conversation import generation_tail, split_prefill
from humanline.score.item import Item, Scorer, Verdict
from humanline.score.weighted import build as build_scorers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Share = Callable[[Callable[[], list[dict[str, Any]]]], list[dict[str, Any]]]
"""runs something on the main process and gives its result to all"""


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

    def open(self, t: int, share: Share) -> None:
        """Sample and score the prompts of steps t … t+S−1 on the main process."""
        turns = self._turns(t)
        self._take(turns, share(lambda: self._made(t, turns)))

    def within(self, t: int) -> bool:
        """Whether the window of step t was opened before it."""
        return (t - 1) % self._every != 0

    def _made(self, t: int, turns: list[Turn]) -> list[dict[str, Any]]:
        started = time.perf_counter()
        sampled = self._sample(turns)
        texts = [self._texts(completions) for completions in sampled]
        between = time.perf_counter()
        verdicts = self._score(turns, sampled, texts)
        self.seconds["sampling"] += between - started
        self.seconds["scoring"] += time.perf_counter() - between
        rows = [
            _row(turn, written, completions, scores)
            for turn, written, completions, scores in zip(turns, texts, sampled, verdicts, strict=True)
        ]
        self._write(t, rows)
        return rows

    def restore(self, t: int) -> None:
        """Go on within the window that step t belongs to, from what was written when it was opened."""
        first = (t - 1) // self._every * self._every + 1
        path = self._path(first)
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} cannot be read: {error}. Step {t} trains on these samples; restore the file."
            ) from error
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
            str(self._tokenizer.decode(_ids(sampled).tolist(), skip_special_tokens=True))
            if sampled.text is None
            else sampled.text
            for sampled in completions
        ]

    def _score(self, turns: list[Turn], sampled: list[tuple[Sampled, ...]], texts: list[list[str]]) -> list[list[Verdict]]:
        items = []
        for turn, completions, written in zip(turns, sampled, texts, strict=True):
            prompt, tail = split_prefill(turn.prompt.text)
            if not isinstance(prompt, str) and not tail:
                tail = generation_tail(self._tokenizer, prompt)
            items += [
                Item(prompt, text, tail, turn.prompt.others, completion.finished, turn.prompt.place)
                for text, completion in zip(written, completions, strict=True)
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
        "completion_ids": [_ids(sampled).tolist() for sampled in completions],
        "logprobs": [None if sampled.logps is None else sampled.logps.astype(float).tolist() for sampled in completions],
        "finish_reason": ["stop" if sampled.finished else "length" for sampled in completions],
        "rewards": [verdict.score for verdict in verdicts],
    }


def _ids(sampled: Sampled) -> np.ndarray:
    if sampled.token_ids is None:
        raise TrainingError(
            "the server gives no token ids, and text alone would not say what was sampled. Use one that does (vLLM, SGLang)."
        )
    return sampled.token_ids


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


def fresh_source(
    config: TrainConfig,
    objective: Objective,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    say: Callable[[str], None],
) -> tuple[Rollouts, Plan, str]:
    """The rollouts of a run, the plan of its prompts, and the content key of these: prompts read, sampler and scorers ready."""
    settings, rows = config.rollout, config.rows
    eos_ids = end_of_sequence_ids(model, tokenizer)
    reading = PromptConfig(rows.columns, rows.split, rows.limit_rows, rows.template, None, rows.too_long)
    room = prompt_room(positions(model), settings.sample.max_new_tokens)
    limit = rows.max_length - settings.sample.max_new_tokens
    prompts, lines = load_prompts(
        config.data, tokenizer, reading, eos_ids=eos_ids, room=limit if room is None else min(room, limit)
    )
    for line in lines:
        say(f"{config.data}: {line}")
    say(f"{config.data}: {len(prompts)} prompts; the first:\n{tokenizer.decode(prompts[0].ids.tolist())}")
    plan = Plan(len(prompts), config.batch_size, config.seed, rows.shuffle)
    sampler: Sampler
    if settings.backend == "transformers":
        sampler = TransformersSampler(model, eos_ids, vocabulary=len(tokenizer), name=config.model, autocast=config.load.autocast)
    else:
        sampler = ServedPolicy(settings, model, tokenizer, eos_ids, folder)
    made = Rollouts(
        prompts,
        plan,
        config.sample_every or 1,
        plan.total_steps(config.steps, config.epochs),
        arrange(objective.kind, finished_only=settings.keep == "finished"),
        dataclasses.replace(settings.sample, seed=config.seed, logprobs="policy"),
        sampler,
        build_scorers(tuple(_with_jobs(scorer, folder) for scorer in settings.scorers)),
        tokenizer,
        folder,
    )
    return made, plan, prompts_key(prompts)


def _with_jobs(scorer: ScorerConfig, folder: Path) -> ScorerConfig:
    """A judge's judgements lie beside the rollouts, so that a resumed run does not pay for them twice."""
    if isinstance(scorer, Judge) and scorer.jobs is None:
        return dataclasses.replace(scorer, jobs=str(folder / "judge.jsonl"))
    return scorer


def prompts_key(prompts: Sequence[Prompt]) -> str:
    """sha256 over the prompts' tokens and the columns that scorers may read."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(prompt.ids.astype("<i4").tobytes())
        digest.update(json.dumps(prompt.others, sort_keys=True, default=str).encode())
    return digest.hexdigest()
