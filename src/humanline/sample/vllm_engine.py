"""Sampling in this process with vLLM's offline engine. Written against the interface of vLLM 0.33; not yet run on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from humanline import randomness
from humanline.config import ModelConfig
from humanline.errors import ConfigError, ModelError
from humanline.sample.config import EngineConfig, SampleConfig
from humanline.sample.sampler import Sampled, logprobs_meaning, versions

PROMPTS_AT_ONCE = 256
"""handed to the engine in one call: enough to keep it busy, few enough for progress and for resuming"""


class VLLMSampler:
    """Draws through `vllm.LLM`. A completion has a request and a seed of its own, so prefix caching shares the prompt.

    vLLM promises equal completions for equal seeds in equal batches only, unless it runs in its batch-invariant mode.
    """

    def __init__(
        self,
        model: str,
        eos_ids: Sequence[int],
        load: ModelConfig,
        config: EngineConfig,
        settings: SampleConfig,
        *,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        """Loads the model: minutes, and most of a GPU. What log-probs mean (`settings.logprobs`) is fixed here."""
        try:
            import vllm
        except ImportError as error:
            raise ConfigError(
                "backend vllm needs the package vllm, which needs a GPU. Install it with `pip install humanline[vllm]`, "
                "or use --backend transformers, or a vLLM server with --backend openai."
            ) from error
        self.name = model
        self._eos_ids = sorted(set(eos_ids))
        self._logprobs = settings.logprobs
        self._watch = watch
        self._vllm = vllm
        self._engine = vllm.LLM(
            model=model,
            dtype=load.dtype,
            revision=load.revision,
            trust_remote_code=load.trust_remote_code,
            tensor_parallel_size=config.tensor_parallel_size,
            gpu_memory_utilization=config.gpu_memory_utilization,
            max_model_len=config.max_model_len,
            logprobs_mode="processed_logprobs" if settings.logprobs == "drawn" else "raw_logprobs",
            # The model's own top-k and penalties would change the distribution behind the trainer's back.
            generation_config="vllm",
            enable_prefix_caching=True,
        )

    def sample(
        self, prompts: Sequence[np.ndarray], *, numbers: Sequence[int], settings: SampleConfig
    ) -> Iterator[tuple[int, tuple[Sampled, ...]]]:
        """See `Sampler`."""
        if settings.logprobs != self._logprobs:
            raise ConfigError(
                f"sample.logprobs is {settings.logprobs}: expected {self._logprobs}, with which the engine was started."
            )
        for start in range(0, len(prompts), PROMPTS_AT_ONCE):
            indices = range(start, min(start + PROMPTS_AT_ONCE, len(prompts)))
            requests = [(index, completion) for index in indices for completion in range(settings.n)]
            outputs = self._engine.generate(
                [{"prompt_token_ids": prompts[index].tolist()} for index, _ in requests],
                [self._parameters(numbers[index], completion, settings) for index, completion in requests],
                use_tqdm=False,
            )
            sampled = [self._read(output.outputs[0], settings) for output in outputs]
            for position, index in enumerate(indices):
                yield index, tuple(sampled[position * settings.n : (position + 1) * settings.n])

    def provenance(self, settings: SampleConfig) -> dict[str, Any]:
        """The model by name, and what its log-probs mean."""
        return {
            "backend": "vllm",
            "model": self.name,
            "logprobs": logprobs_meaning(settings.transform),
            "versions": versions("torch", "vllm"),
        }

    def _parameters(self, number: int, completion: int, settings: SampleConfig) -> Any:
        return self._vllm.SamplingParams(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=-1,
            max_tokens=settings.max_new_tokens,
            seed=randomness.key(settings.seed, "sample", number, completion) % 2**31,
            logprobs=0,  # of the drawn token only
            stop_token_ids=self._eos_ids,
            detokenize=False,
        )

    def _read(self, output: Any, settings: SampleConfig) -> Sampled:
        """A finished completion of vLLM, whose ids include the end token."""
        ids = list(output.token_ids)
        if output.finish_reason not in ("stop", "length") or output.logprobs is None:
            raise ModelError(
                f"vLLM ended a completion with finish_reason {output.finish_reason!r} and "
                f"{'no ' if output.logprobs is None else ''}log-probs. Expected stop or length, with log-probs."
            )
        logps = [_logp(position, token) for position, token in zip(output.logprobs, ids, strict=True)]
        if settings.transform[0] == 0:  # vLLM applies no temperature to greedy requests
            logps = [0.0] * len(ids)
        if self._watch:
            self._watch(len(ids))
        return Sampled(np.array(ids, np.int32), np.array(logps, np.float32), output.finish_reason == "stop")


def _logp(position: Mapping[int, Any], token: int) -> float:
    """The drawn token's entry among those of its position."""
    value = float(position[token].logprob)
    if not math.isfinite(value):
        raise ModelError(f"vLLM gives token {token} the log-prob {value}. Expected a finite one.")
    return value
