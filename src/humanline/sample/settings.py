"""How completions are drawn, and by which backend: what `humanline sample` and a training run share. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from humanline.errors import ConfigError

Backend = Literal["transformers", "openai", "vllm"]


def require(condition: bool, key: str, value: object, expected: str) -> None:
    """Raise `ConfigError` naming the setting by its key path, its value and what was expected."""
    if not condition:
        raise ConfigError(f"{key} is {'null' if value is None else value}: expected {expected}.")


def require_count(key: str, value: int | None) -> None:
    """A whole number from 1 on, or null."""
    require(value is None or value >= 1, key, value, "a whole number from 1 on")


@dataclass(frozen=True)
class SampleConfig:
    """How completions are drawn. `numbers`, `seed` and these settings decide the set; `batch_tokens` only how fast it is made."""

    n: int = 8
    """completions of each prompt, ≥ 1"""
    temperature: float = 1.0
    """logits are divided by it, ≥ 0; 1 = the model's own distribution, 0 = always the most likely token (log-prob 0)"""
    top_p: float = 1.0
    """the smallest set of most likely tokens whose mass, after temperature, reaches this, in (0, 1]; 1 = all tokens"""
    max_new_tokens: int = 512
    """a completion that has not ended by then is cut, ≥ 1"""
    seed: int = 0
    """of every draw, in [0, 2^63)"""
    logprobs: Literal["drawn", "policy"] = "drawn"
    """which log-probs are kept: under temperature and top_p as drawn, or the policy's own (temperature 1, all tokens)"""
    batch_tokens: int = 32768
    """tokens of all sequences decoded together, each counted with `max_new_tokens`, ≥ 1; bounds the key/value cache"""

    def __post_init__(self) -> None:
        for key in ("n", "max_new_tokens", "batch_tokens"):
            require_count(f"sample.{key}", getattr(self, key))
        require(0 <= self.temperature < math.inf, "sample.temperature", self.temperature, "a number from 0 on, e.g. 1.0")
        require(0 < self.top_p <= 1, "sample.top_p", self.top_p, "a share in (0, 1], 1 for all tokens")
        require(0 <= self.seed < 2**63, "sample.seed", self.seed, "a whole number in [0, 2^63)")
        if self.temperature == 0:
            require(self.n == 1, "sample.n", self.n, "1 at temperature 0, where all completions of a prompt would be equal")

    @property
    def transform(self) -> tuple[float, float]:
        """(temperature, top_p) that kept log-probs are taken under."""
        return (self.temperature, self.top_p) if self.logprobs == "drawn" else (1.0, 1.0)


@dataclass(frozen=True)
class ServerConfig:
    """An OpenAI-compatible server; used by backend `openai`. The key comes from the environment, `OPENAI_API_KEY`."""

    url: str = "http://127.0.0.1:8000/v1"
    """base address, up to and with /v1"""
    model: str | None = None
    """name at the server; null = the only one it lists"""
    api: Literal["auto", "tokens", "text", "chat"] = "auto"
    """what is sent: the prompt's token ids, its text, or its messages; auto = the first of these that the server accepts"""
    logprobs: Literal["policy", "drawn", "off"] = "policy"
    """the server's log-probs are: policy = at temperature 1, all tokens (vLLM, llama.cpp); drawn = as drawn; off = not wanted"""
    concurrency: int = 32
    """requests in flight, ≥ 1"""
    retries: int = 5
    """further tries of a request after a passing fault (no connection, 408, 409, 429, 5xx, a broken reply), ≥ 0"""
    backoff: float = 1.0
    """seconds before the first further try, doubled each time up to 60; a server's Retry-After goes first"""
    timeout: float = 600.0
    """seconds until a request without an answer counts as failed, > 0"""

    def __post_init__(self) -> None:
        require(
            self.url.startswith(("http://", "https://")), "server.url", self.url, "an address such as http://127.0.0.1:8000/v1"
        )
        require_count("server.concurrency", self.concurrency)
        require(self.retries >= 0, "server.retries", self.retries, "a whole number from 0 on")
        require(0 <= self.backoff < math.inf, "server.backoff", self.backoff, "seconds from 0 on")
        require(0 < self.timeout < math.inf, "server.timeout", self.timeout, "seconds above 0")


@dataclass(frozen=True)
class EngineConfig:
    """The vLLM engine; used by backend `vllm`. Whatever is not named here has vLLM's default."""

    tensor_parallel_size: int = 1
    """GPUs that share the model, ≥ 1"""
    gpu_memory_utilization: float = 0.9
    """share of a GPU's memory that the engine may take, in (0, 1]"""
    max_model_len: int | None = None
    """tokens of prompt + completion, ≥ 1; null = the model's own"""

    def __post_init__(self) -> None:
        require_count("engine.tensor_parallel_size", self.tensor_parallel_size)
        require_count("engine.max_model_len", self.max_model_len)
        share = self.gpu_memory_utilization
        require(0 < share <= 1, "engine.gpu_memory_utilization", share, "a share in (0, 1]")
