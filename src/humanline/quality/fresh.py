"""Fresh samples of the model for some prompts of the data: what is usual for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from humanline import models, randomness
from humanline.data.rows import EncodedCompletion, EncodedGroup
from humanline.errors import ModelError
from humanline.quality.config import InspectConfig
from humanline.sample.config import SampleConfig
from humanline.sample.local import TransformersSampler
from humanline.sample.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LONGEST = 512
"""new tokens of a fresh sample, at most, unless asked for"""


def choose_prompts(groups: Sequence[EncodedGroup], count: int, seed: int) -> list[list[int]]:
    """Rows of `count` different prompts (all, if there are fewer), drawn by seed, in the order of the data."""
    rows_of: dict[str, list[int]] = {}
    for row, group in enumerate(groups):
        rows_of.setdefault(group.prompt_key, []).append(row)
    prompts = list(rows_of.values())
    chosen = randomness.generator(seed, "inspect prompts").permutation(len(prompts))[:count]
    return [prompts[number] for number in sorted(chosen.tolist())]


def sample_fresh(
    model: PreTrainedModel,
    eos_ids: Sequence[int],
    vocabulary: int,
    groups: Sequence[EncodedGroup],
    chosen: Sequence[Sequence[int]],
    config: InspectConfig,
    say: Callable[[str], None],
) -> list[EncodedGroup]:
    """Samples at temperature 1, a group for each chosen prompt."""
    firsts = [groups[rows[0]] for rows in chosen]
    settings = SampleConfig(
        n=config.fresh_completions,
        max_new_tokens=_room(model, groups, firsts, config.max_new_tokens),
        seed=config.seed,
        batch_tokens=config.batch_tokens,
    )
    progress = Progress(len(firsts), max_new_tokens=settings.max_new_tokens, say=say)
    sampler = TransformersSampler(
        model, eos_ids, vocabulary=vocabulary, name=config.model, autocast=config.load.autocast, watch=progress.made
    )
    made: dict[int, EncodedGroup] = {}
    prompts, numbers = [group.prompt_ids for group in firsts], [rows[0] for rows in chosen]
    for index, completions in sampler.sample(prompts, numbers=numbers, settings=settings):
        # A model that has no end of sequence is not cut short by a length.
        progress.finished(completions if eos_ids else [replace(sampled, finished=True) for sampled in completions])
        encoded = []
        for sampled in completions:
            assert sampled.token_ids is not None, "a sampler in this process knows its ids"
            ids = sampled.token_ids
            encoded.append(EncodedCompletion(ids, np.ones(len(ids), bool), float("nan"), None, sampled.finished))
        made[index] = EncodedGroup("group", prompts[index], tuple(encoded), firsts[index].place)
    progress.end()
    return [made[index] for index in range(len(firsts))]


def _room(model: PreTrainedModel, groups: Sequence[EncodedGroup], firsts: Sequence[EncodedGroup], asked: int | None) -> int:
    """`max_new_tokens`: what was asked, else the longest completion of the data, within the model's positions."""
    positions = models.positions(model)
    longest = max(len(group.prompt_ids) for group in firsts)
    wanted = asked or min(LONGEST, max(len(each.ids) for group in groups for each in group.completions))
    if positions is None:
        return wanted
    if longest >= positions:
        raise ModelError(
            f"a prompt of {longest} tokens leaves no room for a fresh sample: the model has {positions} positions. "
            "Lower --rows.max-length, or set --fresh 0."
        )
    return min(wanted, positions - longest)
