"""How likely a data set is under a model: the mean token log-prob of each completion, and what it says about the data.

The paper's proxy for how useful a completion is (METHOD §4: its lowest quartile trains significantly worse).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from humanline.config import ModelConfig
from humanline.data.batch import MicroBatch, bundle, collate, pack
from humanline.data.batch import Sequence as TokenSequence
from humanline.data.rows import EncodedGroup
from humanline.errors import DataError
from humanline.metrics import duration
from humanline.quality.contents import CLASSES, class_of
from humanline.token_logps import TokenLogps

EVERY_SECONDS = 10.0
USUAL = 0.05
"""the share of fresh samples that are less likely than the bound below which a completion counts as unusual for the model"""
WARN = 0.10
"""share of unusual completions from which on they are warned about; a house rule: own samples have 5 %"""


class Logp(NamedTuple):
    """Of one completion."""

    total: float
    """Σ log π(y_t | x, y_<t) over its trained tokens, nats"""
    tokens: int

    @property
    def mean(self) -> float:
        """Per token."""
        return self.total / self.tokens


@dataclass(frozen=True)
class Quartile:
    """A quarter of the completions, by their mean token log-prob."""

    lowest: float
    highest: float
    completions: int
    logp: float
    """mean of their mean token log-probs, nats"""
    tokens: float
    """mean length"""
    feedback: float | None
    """mean reward, or share of chosen or desirable completions; None where rows have no feedback"""


@dataclass(frozen=True)
class Likelihood:
    """Of all completions that can be trained on."""

    mean: float
    """of mean token log-probs, nats"""
    quartiles: tuple[Quartile, ...]
    """lowest first"""
    by_class: dict[str, float]
    """the mean of each class: chosen, rejected, desirable, undesirable"""
    fresh_mean: float | None
    """of the model's own fresh samples"""
    usual: float | None
    """nats; 5 % of the fresh samples lie below; None without fresh samples"""
    unusual_share: float | None
    """of the data's completions that lie below `usual`"""


def score(
    module: TokenLogps,
    groups: Sequence[EncodedGroup],
    load: ModelConfig,
    batch_tokens: int,
    say: Callable[[str], None],
    what: str,
) -> list[list[Logp]]:
    """Of each completion of each group. what: of the progress lines, e.g. "scoring under M"."""
    device = next(module.parameters()).device
    bundles = [(sequence,) for row, group in enumerate(groups) for sequence in bundle(group, row)]
    scored: dict[tuple[int, int], Logp] = {}
    started = shown = time.perf_counter()
    tokens = 0
    module.eval()
    for number, packed in enumerate(pack(bundles, batch_tokens)):
        batch = collate(packed)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=load.autocast == "bfloat16"):
            logp_BT = module(**batch.to(device).inputs)
        scored.update(_sums(batch, logp_BT.double().sum(1).cpu().numpy(), groups))
        tokens += sum(sequence.length for sequence in batch.sequences)
        now = time.perf_counter()
        if number and now - shown >= EVERY_SECONDS:
            shown = now
            left = (now - started) / len(scored) * (len(bundles) - len(scored))
            say(
                f"{what}: {len(scored)}/{len(bundles)} completions, {tokens / (now - started):.0f} tokens/s, ETA {duration(left)}"
            )
    seconds = time.perf_counter() - started
    say(
        f"{what}: {len(bundles)} completions, {tokens} tokens in {duration(seconds)} ({tokens / max(seconds, 1e-9):.0f} tokens/s)"
    )
    return [[scored[row, number] for number in range(len(group.completions))] for row, group in enumerate(groups)]


def _sums(batch: MicroBatch, total_B: np.ndarray, groups: Sequence[EncodedGroup]) -> dict[tuple[int, int], Logp]:
    sums = {}
    for sequence, total in zip(batch.sequences, total_B.tolist(), strict=True):
        if not math.isfinite(total):
            raise DataError(
                f"{groups[sequence.row].place}: completion {sequence.number + 1} has log-prob {total} under the model: expected a finite "
                "number. Its weights overflow in this precision; try --load.autocast off --load.dtype float32."
            )
        sums[_slot(sequence)] = Logp(total, int(sequence.completion.mask.sum()))
    return sums


def _slot(sequence: TokenSequence) -> tuple[int, int]:
    return sequence.row, sequence.number


def likelihood(
    groups: Sequence[EncodedGroup], logps: Sequence[Sequence[Logp]], fresh: Sequence[Sequence[Logp]] | None
) -> Likelihood:
    """fresh: of the model's own samples, by prompt."""
    kind = groups[0].kind
    completions = [each for group in groups for each in group.completions]
    mean_N = np.array([logp.mean for group in logps for logp in group])
    classes = np.array([class_of(kind, each) or "" for each in completions])
    usual = float(np.quantile([logp.mean for group in fresh for logp in group], USUAL)) if fresh else None
    return Likelihood(
        float(mean_N.mean()),
        tuple(
            _quartile(
                mean_N[part],
                np.array([len(completions[number].ids) for number in part]),
                None if kind == "chat" else np.array([completions[number].feedback for number in part]),
            )
            for part in np.array_split(mean_N.argsort(kind="stable"), min(4, len(mean_N)))
        ),
        {name: float(mean_N[classes == name].mean()) for name in CLASSES.get(kind, ()) if (classes == name).any()},
        float(np.mean([logp.mean for group in fresh for logp in group])) if fresh else None,
        usual,
        None if usual is None else float((mean_N < usual).mean()),
    )


def _quartile(mean_N: np.ndarray, tokens_N: np.ndarray, feedback_N: np.ndarray | None) -> Quartile:
    scored = [] if feedback_N is None else feedback_N[~np.isnan(feedback_N)]
    feedback = float(np.mean(scored)) if len(scored) else None
    lowest, highest = float(mean_N.min()), float(mean_N.max())
    return Quartile(lowest, highest, len(mean_N), float(mean_N.mean()), float(tokens_N.mean()), feedback)
