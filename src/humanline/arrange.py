"""From a scored group of fresh completions to what an objective trains on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from humanline.data.rows import EncodedCompletion, EncodedGroup, Kind

Arrange = Callable[[EncodedGroup], list[EncodedGroup]]


def arrange(kind: Kind, *, finished_only: bool) -> Arrange:
    """What becomes of a group, by the kind of row that the objective wants. Completions without a score take no part.

    group: itself, if anything is scored · pair: its best against its worst completion (of equals the first), nothing when rewards are
    equal · label: each completion, desirable from the mean reward on, nothing when rewards are equal · chat: its best completion.
    """
    make = {"group": _group, "pair": _pair, "label": _labels, "chat": _best}[kind]

    def arranged(group: EncodedGroup) -> list[EncodedGroup]:
        usable = [
            completion
            for completion in group.completions
            if not math.isnan(completion.feedback) and (kind == "group" or completion.finished or not finished_only)
        ]
        return make(group, usable)

    return arranged


def _group(group: EncodedGroup, usable: list[EncodedCompletion]) -> list[EncodedGroup]:
    return [group] if usable else []


def _pair(group: EncodedGroup, usable: list[EncodedCompletion]) -> list[EncodedGroup]:
    if _equal(usable):
        return []
    best, worst = max(usable, key=_reward), min(usable, key=_reward)
    return [_made(group, "pair", (best, 1.0), (worst, 0.0))]


def _labels(group: EncodedGroup, usable: list[EncodedCompletion]) -> list[EncodedGroup]:
    if _equal(usable):
        return []
    mean = math.fsum(map(_reward, usable)) / len(usable)
    return [_made(group, "label", (completion, float(completion.feedback >= mean))) for completion in usable]


def _best(group: EncodedGroup, usable: list[EncodedCompletion]) -> list[EncodedGroup]:
    return [_made(group, "chat", (max(usable, key=_reward), 1.0))] if usable else []


def _reward(completion: EncodedCompletion) -> float:
    return completion.feedback


def _equal(usable: list[EncodedCompletion]) -> bool:
    return len(set(map(_reward, usable))) < 2


def _made(group: EncodedGroup, kind: Kind, *chosen: tuple[EncodedCompletion, float]) -> EncodedGroup:
    completions = tuple(dataclasses.replace(completion, feedback=feedback) for completion, feedback in chosen)
    return EncodedGroup(kind, group.prompt_ids, completions, group.place)
