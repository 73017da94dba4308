"""Whole groups into micro-batches under a token budget, the same for every objective.

B sequences · S positions of prompt + completion · T completion tokens · N trained tokens of the micro-batch.
mask_BT: True = the token counts. Masks come from lengths, never from token ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from humanline.data.rows import EncodedCompletion, EncodedGroup


@dataclass(frozen=True)
class Sequence:
    """One prompt with one completion, as a forward pass sees it."""

    prompt_ids: np.ndarray
    completion: EncodedCompletion
    row: int
    """number of the prompt's row in the data"""
    number: int
    """number of the completion: within its group, or for a mismatched pair the row it was taken from"""

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.completion.ids)

    @cached_property
    def key(self) -> bytes:
        """32-byte content address: equal tokens and mask, equal key. Template and truncation act only through the tokens."""
        digest = hashlib.sha256(len(self.prompt_ids).to_bytes(8, "little"))
        digest.update(self.prompt_ids.astype("<i4").tobytes())
        digest.update(self.completion.ids.astype("<i4").tobytes())
        digest.update(np.packbits(self.completion.mask).tobytes())
        return digest.digest()


Bundle = tuple[Sequence, ...]
"""The sequences of one group: never split between micro-batches."""


def bundle(group: EncodedGroup, row: int) -> Bundle:
    """All completions of a group, in order."""
    return tuple(Sequence(group.prompt_ids, completion, row, number) for number, completion in enumerate(group.completions))


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass needs, as tensors."""

    bundles: tuple[Bundle, ...]
    input_ids_BS: Tensor
    attention_mask_BS: Tensor | None
    """int64, 1 = a real token; None when padding is on the right, where causal attention never sees it"""
    position_ids_BS: Tensor | None
    """None when padding is on the right: positions then count from 0 as in every model's default"""
    predict_BT: Tensor
    """int64, the position whose output predicts completion token t"""
    token_BT: Tensor
    mask_BT: Tensor
    group_B: Tensor
    feedback_B: Tensor
    sampler_logp_BT: Tensor
    """float32 nats; NaN where the data has no log-probs of its sampler"""

    @cached_property
    def sequences(self) -> tuple[Sequence, ...]:
        return tuple(sequence for group in self.bundles for sequence in group)

    @property
    def inputs(self) -> dict[str, Tensor | None]:
        """Arguments of `TokenLogps`."""
        names = ("input_ids_BS", "attention_mask_BS", "position_ids_BS", "predict_BT", "token_BT", "mask_BT")
        return {name: getattr(self, name) for name in names}

    def to(self, device: torch.device) -> MicroBatch:
        """A copy whose tensors live on `device`."""
        if self.input_ids_BS.device == device:
            return self
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return MicroBatch(**{**{name: getattr(self, name) for name in self.__dataclass_fields__}, **moved})


def pack(bundles: Seq[Bundle], token_budget: int) -> list[list[Bundle]]:
    """Group bundles into micro-batches of at most `token_budget` tokens, padding included, longest first.

    A bundle above the budget gets a micro-batch of its own. Deterministic: ties keep their order.
    """
    packed: list[list[Bundle]] = []
    longest = rows = 0
    for sequences in sorted(bundles, key=lambda group: -max(sequence.length for sequence in group)):
        if not packed or (rows + len(sequences)) * longest > token_budget:
            packed.append([])
            longest, rows = max(sequence.length for sequence in sequences), 0
        packed[-1].append(sequences)
        rows += len(sequences)
    return packed


def collate(bundles: Seq[Bundle], *, padding_side: Literal["right", "left"] = "right") -> MicroBatch:
    """Tensors for one forward pass. Padding ids are 0; they are never attended to nor scored."""
    sequences = [sequence for group in bundles for sequence in group]
    B, S = len(sequences), max(sequence.length for sequence in sequences)
    T = max(len(sequence.completion.ids) for sequence in sequences)
    input_ids_BS = np.zeros((B, S), np.int64)
    real_BS = np.zeros((B, S), np.int64)
    predict_BT = np.zeros((B, T), np.int64)
    token_BT = np.zeros((B, T), np.int64)
    mask_BT = np.zeros((B, T), bool)
    sampler_logp_BT = np.full((B, T), np.nan, np.float32)
    for b, sequence in enumerate(sequences):
        completion, t, prompt = sequence.completion, len(sequence.completion.ids), len(sequence.prompt_ids)
        start = 0 if padding_side == "right" else S - sequence.length
        input_ids_BS[b, start : start + prompt] = sequence.prompt_ids
        input_ids_BS[b, start + prompt : start + prompt + t] = completion.ids
        real_BS[b, start : start + sequence.length] = 1
        predict_BT[b, :t] = np.arange(start + prompt - 1, start + prompt + t - 1)
        token_BT[b, :t] = completion.ids
        mask_BT[b, :t] = completion.mask
        if completion.logps is not None:
            sampler_logp_BT[b, :t] = completion.logps
    left = padding_side == "left"
    return MicroBatch(
        bundles=tuple(bundles),
        input_ids_BS=torch.from_numpy(input_ids_BS),
        attention_mask_BS=torch.from_numpy(real_BS) if left else None,
        position_ids_BS=torch.from_numpy(np.maximum(real_BS.cumsum(1) - 1, 0)) if left else None,
        predict_BT=torch.from_numpy(predict_BT),
        token_BT=torch.from_numpy(token_BT),
        mask_BT=torch.from_numpy(mask_BT),
        group_B=torch.from_numpy(np.repeat(np.arange(len(bundles)), [len(group) for group in bundles])),
        feedback_B=torch.tensor([sequence.completion.feedback for sequence in sequences], dtype=torch.float32),
        sampler_logp_BT=torch.from_numpy(sampler_logp_BT),
    )
