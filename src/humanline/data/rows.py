"""The one unit of data: a prompt, its completions, and a number for each completion.

A preference pair is a row of two completions, a labelled answer a row of one, a GRPO group a row of n, a conversation for
supervised training a row of one. One shape serves every objective; `kind` says what the numbers mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

Kind = Literal["pair", "label", "group", "chat"]
Message = Mapping[str, Any]
"""A chat turn: {"role": "system" | "user" | "assistant" | "tool" | …, "content": str}."""
Text = str | tuple[Message, ...]
"""Plain text, or the turns of a conversation."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row came from, for error messages: `str(place)` is `train.jsonl:812`."""

    source: str
    """file name, data set name, or "<memory>" """
    line: int
    """1-based: the line of a JSONL or CSV file where the row starts, else the number of the row"""

    def __str__(self) -> str:
        return f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer as text, with whatever the file knows about how it was sampled."""

    text: Text
    """the answer; as turns, usually a single assistant turn, for `chat` everything from the first assistant turn on"""
    token_ids: tuple[int, ...] | None = None
    """the sampler's own ids, used instead of tokenizing `text` again"""
    logps: tuple[float, ...] | None = None
    """natural-log probability of each of `token_ids` under the policy that sampled them, nats"""
    finished: bool | None = None
    """False: cut by a length limit, so no end-of-sequence token belongs after it. None: unknown, taken as finished."""
    transform: tuple[float, float] = (1.0, 1.0)
    """(temperature, top_p) that `logps` are taken under"""


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt with n completions and n numbers.

    feedback by kind: `pair` (1, 0) for (chosen, rejected) · `label` 1 desirable, 0 undesirable · `group` the reward, None when
    it could not be scored (a state of its own, never 0) · `chat` 1.
    """

    kind: Kind
    prompt: Text
    completions: tuple[Completion, ...]
    feedback: tuple[float | None, ...]
    place: Place
    prompt_ids: tuple[int, ...] | None = None
    """the ids that the completions were sampled from, used instead of tokenizing `prompt` where all of them have `token_ids`"""


@dataclass(frozen=True)
class EncodedCompletion:
    """The tokens of one completion. T completion tokens, the end-of-sequence token included where there is one."""

    ids: np.ndarray
    """int32 [T], T ≥ 1"""
    mask: np.ndarray
    """bool [T], True = the token counts in the loss (False on user turns inside a multi-turn `chat`)"""
    feedback: float
    """see `Row`; NaN = unscored"""
    logps: np.ndarray | None
    """float32 [T], the sampler's log-probs in nats, or None"""
    finished: bool
    """False: cut by a length limit"""


@dataclass(frozen=True)
class EncodedGroup:
    """A row in tokens. P prompt tokens, shared by all completions."""

    kind: Kind
    prompt_ids: np.ndarray
    """int32 [P], P ≥ 1"""
    completions: tuple[EncodedCompletion, ...]
    place: Place

    @cached_property
    def tokens(self) -> int:
        """Tokens of a forward pass that repeats the prompt for each completion: Σ (P + T)."""
        return sum(len(self.prompt_ids) + len(completion.ids) for completion in self.completions)

    @cached_property
    def prompt_key(self) -> str:
        """Content address of the prompt: equal ids, equal key."""
        return hashlib.sha256(self.prompt_ids.astype("<i4").tobytes()).hexdigest()
