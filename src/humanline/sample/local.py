"""Sampling in this process with a transformers model.

Prompts go longest first, so that neighbours are of like length and memory shows at once whether it suffices. A prompt is computed
once; its keys and values are repeated for its completions. Sequences that end leave the batch. Shorter prompts are padded on the
left, positions counted from each prompt's own start.

B sequences decoded together · P prompts of a batch · S tokens so far, padding included · V vocabulary.
real_: 1 = a token, 0 = padding.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from humanline import models
from humanline.errors import ModelError
from humanline.sample.config import SampleConfig
from humanline.sample.draw import Streams, draw, transformed
from humanline.sample.sampler import Sampled, logprobs_meaning, versions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Slot = tuple[int, int]
"""(index of the prompt, number of the completion)"""


class TransformersSampler:
    """Draws from a model in memory, as it is at the time: the policy of a training run, or one loaded for sampling.

    Equal weights, settings, prompt and number give the same completion in any batch, unless a draw falls within the rounding that
    another batch shape brings (docs/sampling.md has the odds). With `batch_tokens=1` every completion is decoded alone, and its
    bits are the same whatever else is sampled.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        eos_ids: Sequence[int],
        *,
        vocabulary: int | None = None,
        name: str = "",
        autocast: Literal["off", "bfloat16"] = "off",
        watch: Callable[[int], None] | None = None,
    ) -> None:
        """eos_ids: every id that ends a completion. vocabulary: how many ids the tokenizer has; a model's further ones, which stand
        for nothing, are never drawn. autocast: as in training. watch: is told how many tokens each step made.
        """
        self.model, self.name = model, name
        self._device = next(model.parameters()).device
        self._draws_on = torch.device("cpu") if self._device.type == "mps" else self._device  # mps has no float64
        self._eos_ids = torch.tensor(sorted(set(eos_ids)), dtype=torch.int64, device=self._draws_on)
        self._vocabulary = vocabulary
        self._cache = _cache_argument(model)
        self._autocast = autocast
        self._watch = watch

    def sample(
        self, prompts: Sequence[np.ndarray], *, numbers: Sequence[int], settings: SampleConfig
    ) -> Iterator[tuple[int, tuple[Sampled, ...]]]:
        """See `Sampler`. Holds the model in eval mode until the iterator is exhausted or closed."""
        self._check(prompts, settings)
        unfinished: dict[int, dict[int, Sampled]] = {index: {} for index in range(len(prompts))}
        with self._sampling():
            for slots in batches(prompts, settings):
                for (index, completion), sampled in self._batch(prompts, numbers, slots, settings):
                    group = unfinished[index]
                    group[completion] = sampled
                    if len(group) == settings.n:
                        yield index, tuple(group[number] for number in range(settings.n))
                        del unfinished[index]

    def provenance(self, settings: SampleConfig) -> dict[str, Any]:
        """The model by name and by the content of its weights; hashes them, so ask once."""
        return {
            "backend": "transformers",
            "model": self.name,
            "fingerprint": models.fingerprint(self.model, self._autocast),
            "logprobs": logprobs_meaning(settings.transform),
            "versions": versions("torch", "transformers"),
        }

    def _check(self, prompts: Sequence[np.ndarray], settings: SampleConfig) -> None:
        positions = models.positions(self.model)
        longest = max(map(len, prompts), default=0)
        if positions is not None and longest + settings.max_new_tokens > positions:
            raise ModelError(
                f"the longest prompt has {longest} tokens and max_new_tokens is {settings.max_new_tokens}, but the model has "
                f"{positions} positions. Lower max_new_tokens, or the length of prompts."
            )

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(training)

    def _batch(
        self, prompts: Sequence[np.ndarray], numbers: Sequence[int], slots: list[Slot], settings: SampleConfig
    ) -> Iterator[tuple[Slot, Sampled]]:
        """Decode the completions of `slots` together; yields each when it ends."""
        indices = list(dict.fromkeys(index for index, _ in slots))
        real_BS, logits_BV, cache = self._prefill([prompts[index] for index in indices])
        longest = real_BS.shape[1]
        streams = Streams(settings.seed, [(numbers[index], completion) for index, completion in slots], logits_BV.shape[-1])
        rows = torch.tensor([indices.index(index) for index, _ in slots], device=self._device)
        cache.reorder_cache(rows)
        real_BS, logits_BV = real_BS[rows], logits_BV[rows.to(self._draws_on)]
        position_B = real_BS.sum(1)
        tokens: dict[Slot, list[int]] = {slot: [] for slot in slots}
        logps: dict[Slot, list[float]] = {slot: [] for slot in slots}
        for step in range(1, settings.max_new_tokens + 1):
            token_B, logp_B = self._draw(logits_BV, streams, settings)
            ended = torch.isin(token_B, self._eos_ids).tolist()
            for slot, token, logp in zip(slots, token_B.tolist(), logp_B.tolist(), strict=True):
                tokens[slot].append(token)
                logps[slot].append(logp)
            if self._watch:
                self._watch(len(slots))
            stays = [] if step == settings.max_new_tokens else [row for row, end in enumerate(ended) if not end]
            for row in sorted(set(range(len(slots))) - set(stays)):
                slot = slots[row]
                yield slot, Sampled(np.array(tokens[slot], np.int32), np.array(logps[slot], np.float32), finished=ended[row])
            if not stays:
                return
            token_B = token_B.to(self._device)
            if len(stays) < len(slots):
                slots = [slots[row] for row in stays]
                streams.keep(stays)
                keep = torch.tensor(stays, device=self._device)
                cache.reorder_cache(keep)
                real_BS, position_B, token_B = real_BS[keep], position_B[keep], token_B[keep]
            real_BS = torch.cat([real_BS, torch.ones_like(real_BS[:, :1])], 1)
            padded = any(len(prompts[index]) < longest for index, _ in slots)
            logits_BV, cache = self._forward(token_B[:, None], real_BS if padded else None, position_B[:, None], cache)
            position_B = position_B + 1

    def _prefill(self, prompts: list[np.ndarray]) -> tuple[Tensor, Tensor, Any]:
        """(real_PS, logits_PV after the last token, the cache)."""
        longest = max(map(len, prompts))
        ids_PS = np.zeros((len(prompts), longest), np.int64)
        real_PS = np.zeros((len(prompts), longest), np.int64)
        for row, prompt in enumerate(prompts):
            ids_PS[row, longest - len(prompt) :] = prompt
            real_PS[row, longest - len(prompt) :] = 1
        ids, real = torch.from_numpy(ids_PS).to(self._device), torch.from_numpy(real_PS).to(self._device)
        padded = any(len(prompt) < longest for prompt in prompts)
        logits_PV, cache = self._forward(ids, real if padded else None, (real.cumsum(1) - 1).clamp(min=0), None)
        if not hasattr(cache, "reorder_cache"):
            raise ModelError(
                f"{type(self.model).__name__} keeps no key/value cache that can be repeated and cut ({type(cache).__name__}). "
                "Sample from a server (--backend openai) or with vLLM (--backend vllm)."
            )
        return real, logits_PV, cache

    @torch.no_grad()
    def _forward(self, ids_BS: Tensor, real_BS: Tensor | None, positions_BS: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """(float32 logits_BV of the last position, the cache with these tokens). real_BS None: no padding anywhere."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast == "bfloat16"):
            output = self.model(
                input_ids=ids_BS,
                attention_mask=real_BS,
                position_ids=positions_BS,
                use_cache=True,
                logits_to_keep=1,
                **{self._cache: cache},
            )
        return output.logits[:, -1].float().to(self._draws_on), output[self._cache]

    @torch.no_grad()
    def _draw(self, logits_BV: Tensor, streams: Streams, settings: SampleConfig) -> tuple[Tensor, Tensor]:
        """(token_B, logp_B under `settings.transform`; the policy's own are over its whole vocabulary, as the trainer's are)."""
        known_BV = logits_BV
        if self._vocabulary is not None and self._vocabulary < logits_BV.shape[-1]:
            known_BV = logits_BV.clone()
            known_BV[:, self._vocabulary :] = -torch.inf
        drawn_BV = transformed(known_BV, settings.temperature, settings.top_p)
        token_B = draw(drawn_BV, torch.from_numpy(streams.next()).to(self._draws_on))
        same = settings.transform == (settings.temperature, settings.top_p)
        own = settings.transform == (1.0, 1.0) and known_BV is not logits_BV
        kept_BV = drawn_BV if same and not own else transformed(logits_BV, *settings.transform)
        return token_B, kept_BV.gather(-1, token_B[:, None])[:, 0]


def batches(prompts: Sequence[np.ndarray], settings: SampleConfig) -> Iterator[list[Slot]]:
    """All completions of all prompts, longest prompt first, in batches of at most `batch_tokens`, or of one completion."""
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    slots = ((index, completion) for index in order for completion in range(settings.n))
    for first in slots:
        room = settings.batch_tokens // (len(prompts[first[0]]) + settings.max_new_tokens)
        yield [first, *islice(slots, max(room, 1) - 1)]


def _cache_argument(model: nn.Module) -> str:
    """What `forward` calls its key/value cache; transformers 5 renamed it on the way."""
    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    return "cache" if "cache" in inspect.signature(inner.forward).parameters else "past_key_values"
