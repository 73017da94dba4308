"""The vLLM backend against a stand-in of its offline interface; the last test runs the real thing where it is installed."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from builders import save_model
from humanline import models, randomness
from humanline.config import ModelConfig
from humanline.errors import ConfigError, ModelError
from humanline.sample.config import EngineConfig, SampleConfig
from humanline.sample.mismatch import logp_mismatch
from humanline.sample.vllm_engine import PROMPTS_AT_ONCE, VLLMSampler
from humanline.token_logps import TokenLogps

SETTINGS = SampleConfig(n=2, max_new_tokens=4, temperature=0.7, top_p=0.9, seed=3)


class Engine:
    """`vllm.LLM` as far as it is used: answers with the prompt's last token, then what the seed says."""

    reason = "stop"
    logp: float | None = -0.5

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.calls: list[tuple[list[Any], list[Any]]] = []

    def generate(self, prompts: list[Any], parameters: list[Any], *, use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        self.calls.append((prompts, parameters))
        return [self._answer(prompt, given) for prompt, given in zip(prompts, parameters, strict=True)]

    def _answer(self, prompt: Any, given: Any) -> Any:
        ids = (prompt["prompt_token_ids"][-1], given.seed % 40, 2)
        logprobs = (
            None
            if self.logp is None
            else [{token: SimpleNamespace(logprob=self.logp * (1 + place))} for place, token in enumerate(ids)]
        )
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids, logprobs=logprobs, finish_reason=self.reason)])


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type[Engine]:
    class Fresh(Engine):
        pass

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=Fresh, SamplingParams=SimpleNamespace))
    return Fresh


def sampler(settings: SampleConfig = SETTINGS) -> VLLMSampler:
    return VLLMSampler("some/model", (7, 2), ModelConfig(dtype="bfloat16"), EngineConfig(max_model_len=64), settings)


def test_every_completion_is_a_request_with_its_own_seed(engine: type[Engine]) -> None:
    made = sampler()
    prompts = [np.array([5, 6], np.int32), np.array([9], np.int32)]
    found = dict(made.sample(prompts, numbers=[4, 8], settings=SETTINGS))
    ((sent, parameters),) = made._engine.calls
    assert sent == [{"prompt_token_ids": [5, 6]}] * 2 + [{"prompt_token_ids": [9]}] * 2
    seeds = [randomness.key(3, "sample", number, completion) % 2**31 for number in (4, 8) for completion in (0, 1)]
    assert [given.seed for given in parameters] == seeds
    assert vars(parameters[0]) == {
        "temperature": 0.7, "top_p": 0.9, "top_k": -1, "max_tokens": 4, "seed": seeds[0], "logprobs": 0, "stop_token_ids": [2, 7],
        "detokenize": False,
    }  # fmt: skip
    assert [one.token_ids.tolist() for one in found[1]] == [[9, seeds[2] % 40, 2], [9, seeds[3] % 40, 2]]
    assert found[0][0].logps.tolist() == [-0.5, -1.0, -1.5] and found[0][0].finished


def test_R10_the_engine_keeps_the_log_probs_that_are_asked_for(engine: type[Engine]) -> None:
    drawn, policy = sampler(), sampler(replace(SETTINGS, logprobs="policy"))
    assert drawn._engine.arguments == {
        "model": "some/model", "dtype": "bfloat16", "revision": None, "trust_remote_code": False, "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.9, "max_model_len": 64, "logprobs_mode": "processed_logprobs", "generation_config": "vllm",
        "enable_prefix_caching": True,
    }  # fmt: skip
    assert policy._engine.arguments["logprobs_mode"] == "raw_logprobs"
    with pytest.raises(ConfigError) as raised:
        next(drawn.sample([np.array([5], np.int32)], numbers=[0], settings=replace(SETTINGS, logprobs="policy")))
    assert str(raised.value) == "sample.logprobs is policy: expected drawn, with which the engine was started."


def test_many_prompts_come_in_parts(engine: type[Engine]) -> None:
    made = sampler()
    prompts = [np.array([5], np.int32)] * (PROMPTS_AT_ONCE + 3)
    found = [index for index, _ in made.sample(prompts, numbers=range(len(prompts)), settings=SETTINGS)]
    assert found == list(range(len(prompts)))
    assert [len(sent) for sent, _ in made._engine.calls] == [2 * PROMPTS_AT_ONCE, 6]


def test_R10_a_greedy_completion_has_probability_1_under_its_own_transform(engine: type[Engine]) -> None:
    """vLLM applies no temperature to greedy requests, so its numbers would be those of temperature 1."""
    settings = replace(SETTINGS, n=1, temperature=0.0)
    ((_, (one,)),) = sampler(settings).sample([np.array([5], np.int32)], numbers=[0], settings=settings)
    assert one.logps.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("reason", "logp", "message"),
    [
        (
            "abort",
            -0.5,
            "vLLM ended a completion with finish_reason 'abort' and log-probs. Expected stop or length, with log-probs.",
        ),
        (
            "stop",
            None,
            "vLLM ended a completion with finish_reason 'stop' and no log-probs. Expected stop or length, with log-probs.",
        ),
        ("stop", -np.inf, "vLLM gives token 5 the log-prob -inf. Expected a finite one."),
    ],
)
def test_what_is_no_completion_is_an_error(engine: type[Engine], reason: str, logp: float | None, message: str) -> None:
    engine.reason, engine.logp = reason, logp
    with pytest.raises(ModelError) as raised:
        next(sampler().sample([np.array([5], np.int32)], numbers=[0], settings=SETTINGS))
    assert str(raised.value) == message


def test_without_vllm_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError) as raised:
        sampler()
    assert str(raised.value) == (
        "backend vllm needs the package vllm, which needs a GPU. Install it with `pip install humanline[vllm]`, "
        "or use --backend transformers, or a vLLM server with --backend openai."
    )


@pytest.mark.slow
def test_R10_the_real_engine_agrees_with_the_trainer(tmp_path: Path) -> None:
    """Tokens and log-probs of vLLM against TokenLogps on the same weights, to what bfloat16 kernels leave."""
    if importlib.util.find_spec("vllm") is None or not torch.cuda.is_available():
        pytest.skip("vllm with a GPU is not here")
    name = save_model(tmp_path)
    settings = SampleConfig(n=4, max_new_tokens=16)
    made = VLLMSampler(name, (2,), ModelConfig(), EngineConfig(gpu_memory_utilization=0.3, max_model_len=64), settings)
    prompts = [np.array([9, 20, 31], np.int32), np.array([12], np.int32)]
    found = dict(made.sample(prompts, numbers=[0, 1], settings=settings))
    mismatch = logp_mismatch(TokenLogps(models.load_policy(name)), prompts, [found[0], found[1]])
    assert mismatch.tokens > 8 and mismatch.mean < 0.01
