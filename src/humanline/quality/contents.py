"""What a data set holds, whatever the model thinks of it: counts, lengths, truncation, duplicates, feedback."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from humanline.data.fit import truncate
from humanline.data.rows import EncodedCompletion, EncodedGroup, Kind, Place, Row, Text
from humanline.data.vocabulary import Vocabulary

SHARES = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
"""the quantiles of every distribution that is reported"""


@dataclass(frozen=True)
class Distribution:
    """Of some numbers: how many, mean, standard deviation (of the numbers themselves, ÷ n), and the quantiles `SHARES`."""

    count: int
    mean: float
    std: float
    quantiles: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution:
        array = np.asarray(list(values), np.float64)
        return cls(len(array), float(array.mean()), float(array.std()), tuple(np.quantile(array, SHARES).tolist()))


@dataclass(frozen=True)
class Lengths:
    """Tokens, before anything is cut; the end-of-sequence token counts."""

    prompt: Distribution
    """each row's once"""
    completion: Distribution
    total: Distribution
    """prompt + completion"""


@dataclass(frozen=True)
class Truncation:
    """What the two policies would do to the completions that are too long."""

    max_length: int
    too_long: int
    """completions that exceed it with their prompt"""
    drop_rows: int
    """rows that `drop` leaves out whole"""
    drop_completions: int
    """completions that `drop` leaves out, those of such rows included"""
    cut_prompts: int
    """prompts that `truncate` shortens"""
    cut_completions: int
    cut_tokens: int
    """of prompts and completions together"""


@dataclass(frozen=True)
class Repeats:
    """How many of something equal an earlier one, and where the first of them is."""

    number: int
    place: str | None


@dataclass(frozen=True)
class Duplicates:
    """Equal texts."""

    rows: Repeats
    """prompt, completions and feedback"""
    prompts: Repeats
    completions: Repeats
    """within their own group"""


@dataclass(frozen=True)
class Feedback:
    """What the rows say about their completions."""

    classes: dict[str, int]
    """completions by class: chosen and rejected, desirable and undesirable; {} where feedback is a number or there is none"""
    group_sizes: dict[int, int]
    """completions of a row → rows"""
    zero_variance: int
    """groups of two or more rewards that are all equal: their advantage is 0"""
    single: int
    """groups with one scored completion, or none: their advantage is 0, too"""
    unscored: int
    reward: Distribution | None
    """of all scored completions; None unless rows are groups"""
    within_std: float | None
    """mean over groups of the standard deviation (n − 1) of their rewards"""


def lengths(groups: Sequence[EncodedGroup]) -> Lengths:
    """Of rows encoded without a limit."""
    completions = [(len(group.prompt_ids), len(each.ids)) for group in groups for each in group.completions]
    return Lengths(
        Distribution.of(len(group.prompt_ids) for group in groups),
        Distribution.of(after for _, after in completions),
        Distribution.of(before + after for before, after in completions),
    )


def truncation(groups: Sequence[EncodedGroup], max_length: int, vocabulary: Vocabulary) -> Truncation:
    """Of rows encoded without a limit."""
    counts: Counter[str] = Counter()
    for group in groups:
        room = max_length - len(group.prompt_ids)
        longer = sum(len(each.ids) > room for each in group.completions)
        if not longer:
            continue
        gone = group.kind != "group" or longer == len(group.completions)
        counts.update(too_long=longer, drop_rows=int(gone), drop_completions=len(group.completions) if gone else longer)
        longest = max(len(each.ids) for each in group.completions)
        head = vocabulary.head(group.prompt_ids)
        prompt_ids, cut = truncate(group.prompt_ids, group.completions, longest=longest, max_length=max_length, head=head)
        lost = [len(old.ids) - len(new.ids) for old, new in zip(group.completions, cut, strict=True)]
        lost_of_prompt = len(group.prompt_ids) - len(prompt_ids)
        counts.update(cut_prompts=lost_of_prompt > 0, cut_completions=sum(map(bool, lost)), cut_tokens=lost_of_prompt + sum(lost))
    names = ("too_long", "drop_rows", "drop_completions", "cut_prompts", "cut_completions", "cut_tokens")
    return Truncation(max_length, **{name: counts[name] for name in names})


def duplicates(rows: Sequence[Row]) -> Duplicates:
    """By text, letter by letter."""
    completions = [
        (row.place, f"{index} {_text(completion.text)}") for index, row in enumerate(rows) for completion in row.completions
    ]
    whole = (
        (row.place, "".join(map(_text, (row.prompt, *(each.text for each in row.completions)))) + repr(row.feedback))
        for row in rows
    )
    return Duplicates(_repeats(whole), _repeats((row.place, _text(row.prompt)) for row in rows), _repeats(completions))


def _repeats(entries: Iterable[tuple[Place, str]]) -> Repeats:
    seen: set[bytes] = set()
    number, first = 0, None
    for place, text in entries:
        digest = hashlib.sha256(text.encode()).digest()
        if digest in seen:
            number, first = number + 1, first or str(place)
        seen.add(digest)
    return Repeats(number, first)


def _text(text: Text) -> str:
    """One line of JSON, so that no two texts run into one another."""
    return json.dumps(text if isinstance(text, str) else [dict(turn) for turn in text], sort_keys=True, default=str) + "\n"


CLASSES: dict[Kind, tuple[str, str]] = {"pair": ("chosen", "rejected"), "label": ("desirable", "undesirable")}
"""what feedback 1 and 0 are called"""


def class_of(kind: Kind, completion: EncodedCompletion) -> str | None:
    """The class that a completion belongs to; None where there are no classes."""
    return CLASSES[kind][completion.feedback < 0.5] if kind in CLASSES else None


def feedback(groups: Sequence[EncodedGroup]) -> Feedback:
    """Of the rows that can be trained on."""
    kind = groups[0].kind
    classes = Counter(class_of(kind, each) for group in groups for each in group.completions)
    sizes = Counter(len(group.completions) for group in groups)
    named = {name: classes[name] for name in CLASSES.get(kind, ())}
    if kind != "group":
        return Feedback(named, dict(sorted(sizes.items())), 0, 0, 0, None, None)
    rewards = [[each.feedback for each in group.completions if not math.isnan(each.feedback)] for group in groups]
    several = [values for values in rewards if len(values) > 1]
    return Feedback(
        named,
        dict(sorted(sizes.items())),
        zero_variance=sum(len(set(values)) == 1 for values in several),
        single=len(rewards) - len(several),
        unscored=sum(sizes[size] * size for size in sizes) - sum(map(len, rewards)),
        reward=Distribution.of(value for values in rewards for value in values),
        within_std=float(np.mean([np.std(values, ddof=1) for values in several])) if several else None,
    )
