"""What a training set holds, in lines for a person, and what in it an objective cannot use."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from humanline.data.rows import EncodedGroup, Kind
from humanline.errors import DataError

WARNING = "warning: "
WEIGHTS = "suggested class weights, which balance the two: "


def describe(groups: Sequence[EncodedGroup], kind: Kind) -> list[str]:
    """Counts that matter for this kind of row; warnings start with `WARNING`. Rewards that are all missing are a `DataError`."""
    if kind == "label":
        return _labels(groups)
    if kind == "group":
        return _groups(groups)
    same = [group for group in groups if kind == "pair" and np.array_equal(group.completions[0].ids, group.completions[1].ids)]
    return (
        [f"{WARNING}{len(same)} of {len(groups)} pairs have equal completions (first {same[0].place}): they teach nothing."]
        if same
        else []
    )


def describe_held_out(groups: Sequence[EncodedGroup], kind: Kind) -> list[str]:
    """As `describe`, without advice on training."""
    lines = [line for line in describe(groups, kind) if not line.startswith(WEIGHTS)]
    return [
        f"{WARNING}held-out rows: {line.removeprefix(WARNING)}" if line.startswith(WARNING) else f"held-out rows: {line}"
        for line in lines
    ]


def describe_mismatched(groups: Sequence[EncodedGroup], batch_size: int) -> list[str]:
    """A warning where no step has two prompts, whose completions could be exchanged for KTO's K."""
    if batch_size > 1 and len({group.prompt_key for group in groups}) > 1:
        return []
    reason = "batch_size is 1" if batch_size == 1 else f"all {len(groups)} rows have the same prompt"
    return [f"{WARNING}{reason}, so no step has mismatched pairs of prompts and completions: K is 0 throughout."]


def _labels(groups: Sequence[EncodedGroup]) -> list[str]:
    desirable = sum(group.completions[0].feedback > 0.5 for group in groups)
    undesirable = len(groups) - desirable
    lines = [f"labels: {desirable} desirable, {undesirable} undesirable"]
    if not desirable or not undesirable:
        return [*lines, f"{WARNING}every label is {'desirable' if desirable else 'undesirable'}: KTO needs both."]
    ratio = desirable / undesirable
    if not 1 <= ratio <= 4 / 3:
        weights = f"--objective.undesirable-weight {ratio:.3g}" if ratio > 1 else f"--objective.desirable-weight {1 / ratio:.3g}"
        lines.append(f"{WEIGHTS}{weights}")
    return lines


def _groups(groups: Sequence[EncodedGroup]) -> list[str]:
    sizes = [len(group.completions) for group in groups]
    rewards = [
        [completion.feedback for completion in group.completions if not math.isnan(completion.feedback)] for group in groups
    ]
    scored = sum(map(len, rewards))
    if not scored:
        raise DataError(f"{groups[0].place}: none of the {sum(sizes)} completions has a reward. GRPO needs numbers in 'rewards'.")
    equal = sum(len(set(group)) == 1 and len(group) > 1 for group in rewards)
    single = [group for group, values in zip(groups, rewards, strict=True) if len(values) == 1]
    lines = [
        f"groups: {len(groups)} prompts, {sum(sizes)} completions ({min(sizes)} to {max(sizes)} a prompt), "
        f"{sum(sizes) - scored} unscored, {equal} groups with equal rewards (advantage 0)"
    ]
    if single:
        lines.append(f"{WARNING}{len(single)} groups have one scored completion (first {single[0].place}): their advantage is 0.")
    return lines


def content_key(groups: Sequence[EncodedGroup]) -> str:
    """sha256 over tokens, masks and feedback in order: two runs with equal keys train on the same data."""
    digest = hashlib.sha256()
    for group in groups:
        digest.update(group.prompt_ids.astype("<i4").tobytes())
        for completion in group.completions:
            digest.update(completion.ids.astype("<i4").tobytes() + completion.mask.tobytes())
            digest.update(np.float64(completion.feedback).tobytes())
            if completion.logps is not None:
                digest.update(completion.logps.astype("<f4").tobytes())
    return digest.hexdigest()
