"""How far a sampler's log-probs lie from the trainer's on the same tokens, under one and the same transform (R10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from humanline.data.batch import MicroBatch, bundle, collate, pack
from humanline.data.rows import EncodedCompletion, EncodedGroup, Place
from humanline.sample.draw import transformed
from humanline.sample.sampler import Sampled
from humanline.token_logps import CHUNK_ELEMENTS, TokenLogps


@dataclass(frozen=True)
class LogpMismatch:
    """|sampler's − trainer's| log-prob over tokens, nats."""

    mean: float
    max: float
    tokens: int
    """0: no completion had log-probs, and mean and max are 0"""

    @property
    def metrics(self) -> dict[str, float]:
        """For a metrics line."""
        return {"sampler_logp_mean_difference": self.mean, "sampler_logp_max_difference": self.max}


@torch.no_grad()
def logp_mismatch(
    module: TokenLogps,
    prompts: Sequence[np.ndarray],
    completions: Sequence[Sequence[Sampled]],
    *,
    transform: tuple[float, float] = (1.0, 1.0),
    micro_batch_tokens: int = 8192,
) -> LogpMismatch:
    """Compare stored log-probs with those that `module` computes now, in its present mode.

    completions: of each prompt; those without ids or log-probs take no part. transform: (temperature, top_p) that the sampler's are
    taken under; with (1, 1) the trainer's are exactly what training computes, else its logits go through the same transform.
    A token outside the trainer's nucleus has log-prob −inf there, and so the difference ∞.
    """
    groups = [group for prompt, sampled in zip(prompts, completions, strict=True) if (group := _group(prompt, sampled))]
    differences = [np.zeros(0)]
    for bundles in pack([bundle(group, row) for row, group in enumerate(groups)], micro_batch_tokens):
        batch = collate(bundles).to(next(module.parameters()).device)
        logp_BT = module(**batch.inputs) if transform == (1.0, 1.0) else _transformed_logps(module, batch, transform)
        difference_BT = (batch.sampler_logp_BT.double() - logp_BT.double()).abs()
        differences.append(difference_BT[batch.mask_BT].cpu().numpy())
    values = np.concatenate(differences)
    return LogpMismatch(float(values.mean()), float(values.max()), len(values)) if len(values) else LogpMismatch(0.0, 0.0, 0)


def _group(prompt: np.ndarray, completions: Sequence[Sampled]) -> EncodedGroup | None:
    encoded = tuple(
        EncodedCompletion(sampled.token_ids, np.ones(len(sampled.token_ids), bool), 0.0, sampled.logps, sampled.finished)
        for sampled in completions
        if sampled.token_ids is not None and sampled.logps is not None
    )
    return EncodedGroup("group", prompt, encoded, Place("<sampled>", 0)) if encoded else None


def _transformed_logps(module: TokenLogps, batch: MicroBatch, transform: tuple[float, float]) -> Tensor:
    """The log-probs of a batch's tokens under temperature and top_p, from the model's own logits."""
    logits = module.model(
        input_ids=batch.input_ids_BS, attention_mask=batch.attention_mask_BS, position_ids=batch.position_ids_BS, use_cache=False
    ).logits
    b_N, t_N = batch.mask_BT.nonzero(as_tuple=True)
    logp_BT = torch.zeros_like(batch.mask_BT, dtype=torch.float64)
    for b, t in _chunks(b_N, t_N, max(1, CHUNK_ELEMENTS // logits.shape[-1])):
        logp_NV = transformed(logits[b, batch.predict_BT[b, t]].float(), *transform)
        logp_BT[b, t] = logp_NV.gather(-1, batch.token_BT[b, t][:, None])[:, 0]
    return logp_BT


def _chunks(b_N: Tensor, t_N: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(b_N.split(size), t_N.split(size), strict=True)
