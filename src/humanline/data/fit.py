"""What happens to rows that are too long or have nothing to train on: `drop`, `truncate` or `error`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from humanline.data.rows import EncodedCompletion

LONGER = "Raise --rows.max-length, or use `--rows.too-long drop` or `--rows.too-long truncate`."
REMOVE = "Take it out of the data, or use `--rows.too-long drop`, which leaves it out and counts it."


class Problem(NamedTuple):
    """Why a completion cannot be trained on."""

    reason: str
    """equal for equal causes: what the report counts by"""
    detail: str
    """the cause in numbers"""
    move: str
    """what the user can do"""


EMPTY_COMPLETION = Problem("empty completion", "empty completion", REMOVE)
EMPTY_PROMPT = Problem("empty prompt", "empty prompt and no BOS token, so nothing predicts the first token", REMOVE)


def nothing_left(completion: EncodedCompletion, *, max_length: int) -> Problem | None:
    """A completion of which truncation left no trained token."""
    if completion.mask.any():
        return None
    return Problem("nothing left", f"no trained token within max_length {max_length}", LONGER)


def problem_of(prompt_ids: np.ndarray, completion: EncodedCompletion, *, max_length: int | None) -> Problem | None:
    """`max_length` None: length is no problem."""
    before, after = len(prompt_ids), len(completion.ids)
    if not before:
        return EMPTY_PROMPT
    if not completion.mask.any():
        return EMPTY_COMPLETION
    if max_length is None or before + after <= max_length:
        return None
    if before >= max_length:
        return Problem("prompt too long", f"prompt {before} >= max_length {max_length}", LONGER)
    return Problem("too long", f"prompt {before} + completion {after} > max_length {max_length}", LONGER)


def cut_prompt(prompt_ids: np.ndarray, keep: int, *, head: int) -> np.ndarray:
    """The last `keep` ≥ 1 ids of a prompt, of which the first `head` (the BOS) always stay in front."""
    if len(prompt_ids) <= keep:
        return prompt_ids
    return np.concatenate([prompt_ids[: min(head, keep)], prompt_ids[len(prompt_ids) - max(0, keep - head) :]])


def cut_completion(completion: EncodedCompletion, room: int) -> EncodedCompletion:
    """The first `room` ids; what is cut off takes the end of sequence with it, so the completion is unfinished."""
    if len(completion.ids) <= room:
        return completion
    logps = None if completion.logps is None else completion.logps[:room]
    return dataclasses.replace(completion, ids=completion.ids[:room], mask=completion.mask[:room], logps=logps, finished=False)


def truncate(
    prompt_ids: np.ndarray, completions: Sequence[EncodedCompletion], *, longest: int, max_length: int, head: int
) -> tuple[np.ndarray, list[EncodedCompletion]]:
    """Cut the prompt so that a completion of `longest` ids fits, down to one token; then cut the completions.

    All completions keep one and the same prompt.
    """
    prompt_ids = cut_prompt(prompt_ids, max(1, max_length - longest), head=head)
    return prompt_ids, [cut_completion(completion, max_length - len(prompt_ids)) for completion in completions]
