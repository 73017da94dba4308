"""Sampling from a server: what each kind understands and gives, what goes wrong, and what is kept then."""

from __future__ import annotations

import email.utils
import json
import string
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from builders import save_model
from humanline import models, randomness
from humanline.errors import ConfigError, ServerError
from humanline.sample.config import SampleConfig, ServerConfig
from humanline.sample.remote import OpenAISampler
from humanline.sample.sampler import Sampled
from humanline.sample.server import retry_after
from model_server import EOS, Answer, Fault, ModelServer, drawn, logp, refuses, serving

LETTERS = string.ascii_lowercase + string.digits + " .,:=+-*/\n"
PROMPTS = ["what is 2 + 2", "3 * 3 =", "a longer question than the others"]
SETTINGS = SampleConfig(n=4, max_new_tokens=5, temperature=0.7, top_p=0.9, seed=11)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def tokenizer(model: str) -> Any:
    return models.load_tokenizer(model)


def configure(server: ModelServer, **changes: Any) -> ServerConfig:
    return ServerConfig(**(dict(url=server.url, backoff=0.0, retries=2, timeout=20.0) | changes))


def sampled(
    server: ModelServer, tokenizer: Any, settings: SampleConfig = SETTINGS, **changes: Any
) -> tuple[dict[int, tuple[Sampled, ...]], OpenAISampler]:
    """Completions by prompt number, and the sampler, closed."""
    ids = [np.array(tokenizer(text)["input_ids"], np.int32) for text in PROMPTS]
    turns = {number: ({"role": "user", "content": text},) for number, text in enumerate(PROMPTS)}
    sampler = OpenAISampler(configure(server, **changes), tokenizer, (EOS,), turns=turns)
    try:
        return dict(sampler.sample(ids, numbers=range(3), settings=settings)), sampler
    finally:
        sampler.close()


def expected(number: int, completion: int, limit: int = 5) -> tuple[list[int], bool]:
    """What the stub draws for the seed that belongs to a completion."""
    return drawn(randomness.key(SETTINGS.seed, "sample", number, completion) % 2**31, limit)


PLACES = [(number, completion) for number in range(3) for completion in range(4)]


# What each kind of server understands and gives


def test_a_server_that_takes_and_gives_token_ids(tokenizer: Any) -> None:
    """vLLM: ids both ways, log-probs, and everything that shapes the distribution said outright."""
    with serving("vllm", letters=LETTERS) as server:
        found, sampler = sampled(server, tokenizer)
    for number, completion in PLACES:
        ids, finished = expected(number, completion)
        one = found[number][completion]
        assert one.token_ids.tolist() == ids and one.finished == finished
        assert one.logps.dtype == np.float32 and one.logps.tolist() == [logp(token) for token in ids]
    assert set(server.paths) == {"/v1/completions"}
    body = next(body for body in server.bodies[1:] if body["seed"] == randomness.key(11, "sample", 1, 2) % 2**31)
    assert body == {
        "model": "stub",
        "prompt": tokenizer(PROMPTS[1])["input_ids"],
        "max_tokens": 5,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": body["seed"],
        "logprobs": 1,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": [EOS],
        "return_token_ids": True,
    }
    assert sampler.provenance(SETTINGS)["logprobs"] == {"temperature": 1.0, "top_p": 1.0}
    assert {name: sampler.provenance(SETTINGS)[name] for name in ("backend", "server", "model", "api")} == {
        "backend": "openai",
        "server": server.url,
        "model": "stub",
        "api": "tokens",
    }


def test_a_server_that_leaves_the_end_token_out(tokenizer: Any) -> None:
    """llama.cpp: ids stand beside the log-probs; a completion that ended gets its end token, which has no log-prob, so none is kept."""
    with serving("llama.cpp", letters=LETTERS) as server:
        found, _ = sampled(server, tokenizer)
    kept = 0
    for number, completion in PLACES:
        ids, finished = expected(number, completion)
        one = found[number][completion]
        assert one.token_ids.tolist() == ids and one.finished == finished
        assert (one.logps is None) == finished
        kept += one.logps is not None
    assert kept > 0


def test_a_server_that_takes_text_only(tokenizer: Any) -> None:
    """`transformers serve`: text both ways, and its own generation config, without which it would decode greedily or with top-k 50."""
    with serving("transformers", letters=LETTERS) as server:
        found, sampler = sampled(server, tokenizer)
    for number, completion in PLACES:
        ids, finished = expected(number, completion)
        one = found[number][completion]
        assert (one.token_ids, one.logps, one.finished, one.text) == (None, None, finished, server.text(ids))
    body = server.bodies[-1]
    assert body["prompt"] in PROMPTS
    assert json.loads(body["generation_config"]) == {
        "temperature": 0.7, "top_p": 0.9, "top_k": 0, "do_sample": True, "max_new_tokens": 5, "eos_token_id": [EOS],
        "repetition_penalty": 1.0,
    }  # fmt: skip
    assert (sampler.gives_ids, sampler.gives_logps, sampler.provenance(SETTINGS)["logprobs"]) == (False, False, None)


def test_a_server_that_takes_messages_only(tokenizer: Any) -> None:
    """A hosted API: no /completions, unknown fields refused, and a limit of another name."""
    with serving("hosted", letters=LETTERS) as server:
        found, sampler = sampled(server, tokenizer)
    assert found[2][1].text == server.text(expected(2, 1)[0])
    assert server.bodies[-1].keys() == {"model", "messages", "max_completion_tokens", "temperature", "top_p", "seed"}
    assert sampler.provenance(SETTINGS)["api"] == "chat"


def test_what_the_server_is_to_be_sent_can_be_fixed(tokenizer: Any) -> None:
    with serving("vllm", letters=LETTERS) as server:
        sampled(server, tokenizer, api="chat")
        assert set(server.paths) == {"/v1/chat/completions"}
    with serving("transformers", letters=LETTERS) as server, pytest.raises(ServerError) as raised:
        sampled(server, tokenizer, api="tokens")
    assert str(raised.value) == (
        f"server {server.url} takes no form of the first prompt:\n"
        f"  tokens: server {server.url} refuses /completions with status 422: Unexpected fields in the request: "
        "['min_p', 'repetition_penalty', 'return_token_ids', 'stop_token_ids', 'top_k']\n"
        "  Check --server.model and what the server supports.\n"
        f"  tokens: server {server.url} refuses /completions with status 400: prompt must be a string.\n"
        "  Check --server.model and what the server supports."
    )


@pytest.mark.parametrize(
    ("logprobs", "meaning"),
    [("policy", {"temperature": 1.0, "top_p": 1.0}), ("drawn", {"temperature": 0.7, "top_p": 0.9}), ("off", None)],
)
def test_R10_what_the_servers_log_probs_mean_is_recorded(tokenizer: Any, logprobs: Any, meaning: Any) -> None:
    with serving("vllm", letters=LETTERS) as server:
        found, sampler = sampled(server, tokenizer, logprobs=logprobs)
    assert sampler.provenance(SETTINGS)["logprobs"] == meaning
    assert (found[0][0].logps is None) == (logprobs == "off")


def test_R44_a_completion_has_its_own_seed_whatever_is_asked_beside_it(tokenizer: Any) -> None:
    with serving("vllm", letters=LETTERS) as server:
        many, _ = sampled(server, tokenizer)
        few, _ = sampled(server, tokenizer, replace(SETTINGS, n=1), concurrency=1)
    for number in range(3):
        assert few[number][0].token_ids.tolist() == many[number][0].token_ids.tolist()


def test_requests_run_concurrently_up_to_the_limit(tokenizer: Any) -> None:
    everyone = threading.Barrier(4)

    def together(number: int, _: dict[str, Any]) -> Answer | None:
        if number:
            everyone.wait(timeout=20)
        return None

    with serving("vllm", together, letters=LETTERS) as server:
        sampled(server, tokenizer, concurrency=4)
    assert server.most_at_once == 4 and len(server.bodies) == 13


def test_R15_a_prompt_that_the_server_tokenizes_otherwise_is_refused(tokenizer: Any) -> None:
    def another(number: int, body: dict[str, Any]) -> Answer | None:
        return Answer(
            {"choices": [{"text": "a", "finish_reason": "stop"}], "usage": {"prompt_tokens": 14, "completion_tokens": 1}}
        )

    with serving("transformers", another, letters=LETTERS) as server, pytest.raises(ServerError) as raised:
        sampled(server, tokenizer, api="text")
    assert str(raised.value) == (
        f"server {server.url} reads a prompt of 13 tokens as 14, so it would not answer what is trained on.\n"
        "  Let it serve the model that --model names, or send messages (--server.api chat)."
    )


def test_reasoning_that_the_server_splits_off_is_refused(tokenizer: Any) -> None:
    def thinks(number: int, body: dict[str, Any]) -> Answer | None:
        message = {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"}
        return Answer({"choices": [{"message": message, "finish_reason": "stop"}]})

    with (
        serving("vllm", thinks, letters=LETTERS) as server,
        pytest.raises(ServerError, match="splits 'reasoning_content' from the answer"),
    ):
        sampled(server, tokenizer, api="chat")


# Faults


def once(number: int, answer: Answer) -> Fault:
    """A fault of one request."""
    return lambda count, _: answer if count == number else None


@pytest.mark.parametrize(
    "answer",
    [
        refuses(429, "slow down", retry_after="0"),
        refuses(500, "out of memory"),
        refuses(503, "loading"),
        Answer(b'{"choices": [', promised=500),
        Answer(b'{"choices": ['),
        Answer(b"<html>", headers={"content-type": "text/html"}),
        Answer({"choices": []}),
        Answer({"choices": [{"text": "a", "finish_reason": None}]}),
        Answer({"choices": [{"text": "a", "finish_reason": "abort"}]}),
        Answer({"choices": [{"text": None, "finish_reason": "stop"}]}),
    ],
    ids=["429", "500", "503", "cut", "half", "html", "empty", "unfinished", "aborted", "textless"],
)
def test_a_passing_fault_is_tried_again(tokenizer: Any, answer: Answer) -> None:
    with serving("vllm", letters=LETTERS) as whole:
        undisturbed, _ = sampled(whole, tokenizer)
    with serving("vllm", once(5, answer), letters=LETTERS) as server:
        found, _ = sampled(server, tokenizer)
    assert len(server.bodies) == 14
    for number, completion in PLACES:
        assert found[number][completion].token_ids.tolist() == undisturbed[number][completion].token_ids.tolist()


def test_retry_after_is_honoured(tokenizer: Any) -> None:
    with serving("vllm", once(0, refuses(429, "slow down", retry_after="0.3")), letters=LETTERS) as server:
        sampled(server, tokenizer, replace(SETTINGS, n=1))
    assert server.times[1] - server.times[0] >= 0.3


@pytest.mark.parametrize(("value", "seconds"), [("7", 7.0), ("0.5", 0.5), ("-3", 0.0), ("soon", None)])
def test_retry_after_in_seconds(value: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": value}) == seconds
    assert retry_after({}) is None


def test_retry_after_as_a_date() -> None:
    for usegmt in (True, False):
        date = email.utils.formatdate(time.time() + 60, usegmt=usegmt)
        assert 57 < retry_after({"retry-after": date}) <= 60


@pytest.mark.parametrize(
    ("fault", "changes", "message"),
    [
        (
            lambda number, body: refuses(429, "quota is used up", retry_after="0"),
            {},
            "{server} answers /completions with status 429 after 3 tries: quota is used up\n"
            "  Look into the server's log, lower --server.concurrency, or raise --server.retries.",
        ),
        (
            lambda number, body: refuses(500, "out of memory\nat line 3"),
            {"retries": 0},
            "{server} answers /completions with status 500 after 1 try: out of memory\n"
            "  Look into the server's log, lower --server.concurrency, or raise --server.retries.",
        ),
        (
            lambda number, body: time.sleep(1) or None,
            {"timeout": 0.2, "retries": 1},
            "{server} gave no answer to /completions within 0.2 s, after 2 tries.\n"
            "  Raise --server.timeout, or lower --server.concurrency.",
        ),
        (
            lambda number, body: refuses(401, "no such key"),
            {},
            "{server} refuses /completions with status 401: no such key\n  Set the key in the environment, OPENAI_API_KEY.",
        ),
        (
            lambda number, body: Answer(b"<html>", headers={"content-type": "text/html"}),
            {"retries": 0},
            "{server} answers /completions with something else, after 1 try: its reply is no JSON object but '<html>'. "
            "Is it an OpenAI-compatible server?",
        ),
    ],
    ids=["429", "500", "slow", "401", "html"],
)
def test_a_lasting_fault_says_what_to_do(tokenizer: Any, fault: Fault, changes: dict[str, Any], message: str) -> None:
    with serving("vllm", fault, letters=LETTERS) as server, pytest.raises(ServerError) as raised:
        sampled(server, tokenizer, **changes)
    assert str(raised.value) == message.replace("{server}", f"server {server.url}")


def test_a_server_that_is_down_is_named(tokenizer: Any) -> None:
    with serving("vllm") as server:
        pass
    with pytest.raises(ServerError) as raised:
        OpenAISampler(configure(server), tokenizer, (EOS,))
    assert str(raised.value).startswith(f"server {server.url} cannot be reached, or broke off, after 3 tries: ")
    assert str(raised.value).endswith("Is it running? Check --server.url.")


def test_several_models_have_to_be_told_apart(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("vllm", letters=LETTERS) as server:
        monkeypatch.setattr("humanline.sample.server._listed", lambda reply: ["a", "b"])
        with pytest.raises(ConfigError) as raised:
            sampled(server, tokenizer)
        assert (
            str(raised.value) == f"server.model is null, and {server.url} lists a, b: expected one. Name it with --server.model."
        )
        sampled(server, tokenizer, model="stub")
    assert server.bodies[0]["model"] == "stub"


def test_what_is_under_way_is_handed_out_before_the_error(tokenizer: Any) -> None:
    """Requests 0 to 5 are answered, the rest fail: the first prompt's four completions arrive, then the error; no new ones are sent."""
    ids = [np.array(tokenizer(text)["input_ids"], np.int32) for text in PROMPTS]
    with serving("vllm", lambda number, _: refuses(500, "died") if number > 5 else None, letters=LETTERS) as server:
        sampler = OpenAISampler(configure(server, concurrency=1, retries=0), tokenizer, (EOS,))
        arrived = []
        with pytest.raises(ServerError, match="died"):
            for index, _ in sampler.sample(ids, numbers=range(3), settings=SETTINGS):
                arrived.append(index)
        sampler.close()
    assert arrived == [0] and len(server.bodies) == 7


def test_after_a_refusal_nothing_is_tried_again(tokenizer: Any) -> None:
    """One of three requests is refused; the other two, which fail and would be tried eight times more, end with it."""

    def fails(number: int, _: dict[str, Any]) -> Answer | None:
        return None if number == 0 else refuses(401, "key expired") if number == 1 else refuses(500, "busy")

    with serving("vllm", fails, letters=LETTERS) as server, pytest.raises(ServerError, match="key expired"):
        sampled(server, tokenizer, retries=8, backoff=0.02, concurrency=3)
    assert len(server.bodies) < 10


def test_stopping_does_not_wait_for_slow_answers(tokenizer: Any) -> None:
    free = threading.Event()
    ids = [np.array(tokenizer(text)["input_ids"], np.int32) for text in PROMPTS]

    def slow(number: int, _: dict[str, Any]) -> Answer | None:
        if number > 4:
            free.wait(20)
        return None

    with serving("vllm", slow, letters=LETTERS) as server:
        sampler = OpenAISampler(configure(server), tokenizer, (EOS,))
        stream: Iterator[Any] = sampler.sample(ids, numbers=range(3), settings=replace(SETTINGS, n=1, seed=1))
        next(stream)
        start = time.monotonic()
        stream.close()  # type: ignore[attr-defined]
        sampler.close()
        assert time.monotonic() - start < 5
        free.set()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"url": "localhost:8000"}, "server.url is localhost:8000: expected an address such as http://127.0.0.1:8000/v1."),
        ({"concurrency": 0}, "server.concurrency is 0: expected a whole number from 1 on."),
        ({"retries": -1}, "server.retries is -1: expected a whole number from 0 on."),
        ({"backoff": -1.0}, "server.backoff is -1.0: expected seconds from 0 on."),
        ({"timeout": 0.0}, "server.timeout is 0.0: expected seconds above 0."),
    ],
)
def test_ranges(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ServerConfig(**settings)
    assert str(raised.value) == expected
