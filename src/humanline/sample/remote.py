"""Sampling from an OpenAI-compatible server: vLLM, SGLang, llama.cpp, `transformers serve`, or a hosted model.

Every completion is a request of its own with a seed of its own, many at a time. The first request finds out what the server
understands: token ids (exact), the prompt's text (its token count is compared), or the messages (the server's own template).
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from humanline import randomness
from humanline.data.rows import Message
from humanline.data.sampled import FINISHED
from humanline.data.vocabulary import Vocabulary
from humanline.errors import HumanlineError, ServerError
from humanline.sample.config import SampleConfig, ServerConfig
from humanline.sample.sampler import Sampled, logprobs_meaning, versions
from humanline.sample.server import BrokenReply, Refused, Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedTokenizerBase

Api = Literal["tokens", "text", "chat"]
UNSUPPORTED = frozenset({400, 404, 405, 415, 422, 501})
"""status codes that say a form of request is not understood, so that another one may be tried"""


@dataclass(frozen=True)
class Form:
    """A form of request that some servers understand."""

    api: Api
    dialect: Literal["open", "transformers", "plain"]
    """open: the fields of vLLM, SGLang and llama.cpp; transformers: those of `transformers serve`; plain: OpenAI's only"""
    logprobs: bool
    limit: str = "max_tokens"
    """name of the field that limits the completion"""

    @property
    def path(self) -> str:
        return "/chat/completions" if self.api == "chat" else "/completions"


def forms(config: ServerConfig) -> list[Form]:
    """From the most exact to the least."""
    apis: tuple[Api, ...] = ("tokens", "text", "chat") if config.api == "auto" else (config.api,)
    wanted = config.logprobs != "off"
    found = []
    for api in apis:
        found += [
            Form(api, "open", wanted),
            Form(api, "transformers", False),
            Form(api, "plain", wanted),
            Form(api, "plain", False),
        ]
        if api == "chat":
            found.append(Form(api, "plain", False, "max_completion_tokens"))
    return list(dict.fromkeys(found))


class OpenAISampler:
    """Draws from a server. Equal seeds give equal completions as far as the server honours the seed of a request."""

    def __init__(
        self,
        config: ServerConfig,
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: Sequence[int],
        *,
        turns: Mapping[int, tuple[Message, ...]] | None = None,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        """turns: the messages of each prompt by its number, for servers that take nothing else. watch: is told of new tokens."""
        self.config = config
        self._server = Server(config)
        try:
            self._model = self._server.model()
        except BaseException:
            self._server.close()
            raise
        self._vocabulary = Vocabulary(tokenizer, tuple(eos_ids))
        self._eos_ids = sorted(set(eos_ids))
        self._turns = turns or {}
        self._watch = watch
        self._form: Form | None = None
        self.gives_ids = self.gives_logps = False

    def close(self) -> None:
        """Close all connections."""
        self._server.close()

    def connect(self, prompt: np.ndarray, *, number: int, settings: SampleConfig) -> list[str]:
        """Ask for one token, to learn what the server understands and gives; lines that say so. `ServerError` if it is no use."""
        refusals: list[str] = []
        for form in forms(self.config):
            if form.api == "chat" and number not in self._turns:
                continue
            try:
                first = self._server.post(form.path, self._body(form, prompt, number, 0, settings, limit=1), lambda reply: reply)
            except Refused as error:
                if error.status not in UNSUPPORTED:
                    raise
                refusals.append(f"{form.api}: {error}")
                continue
            self._form = form
            break
        else:
            tried = "\n  ".join(dict.fromkeys(refusals)) or "no messages to send"
            raise ServerError(f"server {self.config.url} takes no form of the first prompt:\n  {tried}")
        sampled = self._read(first, prompt, form)
        self.gives_ids, self.gives_logps = sampled.token_ids is not None, sampled.logps is not None
        return self._lines(first, prompt, form)

    def sample(
        self, prompts: Sequence[np.ndarray], *, numbers: Sequence[int], settings: SampleConfig
    ) -> Iterator[tuple[int, tuple[Sampled, ...]]]:
        """See `Sampler`. After a failed request no new ones are sent; what is under way is still handed out before the error."""
        if not len(prompts):
            return
        if self._form is None:
            self.connect(prompts[0], number=numbers[0], settings=settings)
        slots = ((index, completion) for index in range(len(prompts)) for completion in range(settings.n))
        unfinished: dict[int, dict[int, Sampled]] = {index: {} for index in range(len(prompts))}
        running: dict[Future[Sampled], tuple[int, int]] = {}
        give_up = threading.Event()
        fault: HumanlineError | None = None
        try:
            while True:
                for index, completion in islice(slots, 0 if fault else self.config.concurrency - len(running)):
                    running[self._submit(prompts[index], numbers[index], completion, settings, give_up)] = (index, completion)
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    index, completion = running.pop(future)
                    try:
                        unfinished[index][completion] = future.result()
                    except HumanlineError as error:
                        fault = fault or error
                        give_up.set()
                        continue
                    if len(unfinished[index]) == settings.n:
                        group = unfinished.pop(index)
                        yield index, tuple(group[number] for number in range(settings.n))
        finally:
            for future in running:
                future.cancel()
        if fault:
            raise fault

    def provenance(self, settings: SampleConfig) -> dict[str, Any]:
        """The server, its model, and what its log-probs mean; `connect` first."""
        assert self._form is not None, "connect comes first"
        meaning = (1.0, 1.0) if self.config.logprobs == "policy" else (settings.temperature, settings.top_p)
        return {
            "backend": "openai",
            "server": self.config.url,
            "model": self._model,
            "api": self._form.api,
            "logprobs": logprobs_meaning(meaning if self.gives_logps else None),
            "versions": versions("openai"),
        }

    def _submit(
        self, prompt: np.ndarray, number: int, completion: int, settings: SampleConfig, give_up: threading.Event
    ) -> Future[Sampled]:
        form = self._form
        assert form is not None

        def read(reply: dict[str, Any]) -> Sampled:
            sampled = self._read(reply, prompt, form)
            if self._watch:
                self._watch(_count(reply, "completion_tokens") or 0)
            return sampled

        body = self._body(form, prompt, number, completion, settings, limit=settings.max_new_tokens)
        return self._server.submit(form.path, body, read, give_up)

    # the request

    def _body(
        self, form: Form, prompt: np.ndarray, number: int, completion: int, settings: SampleConfig, *, limit: int
    ) -> dict[str, Any]:
        """Everything that shapes the distribution is said outright: servers have top-k, min-p and penalties of their own."""
        content: dict[str, Any]
        if form.api == "chat":
            content = {"messages": [dict(turn) for turn in self._turns[number]]}
        else:
            content = {"prompt": prompt.tolist() if form.api == "tokens" else self._vocabulary.text_of(prompt)}
        body = content | {
            "model": self._model,
            form.limit: limit,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "seed": randomness.key(settings.seed, "sample", number, completion) % 2**31,
        }
        if form.logprobs:
            body["logprobs"] = True if form.api == "chat" else 1
        if form.dialect == "open":
            body |= {
                "top_k": -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "stop_token_ids": self._eos_ids,
                "return_token_ids": True,
            }
        elif form.dialect == "transformers":
            body["generation_config"] = json.dumps(self._generation_config(settings, limit))
        return body

    def _generation_config(self, settings: SampleConfig, limit: int) -> dict[str, Any]:
        """For `transformers serve`, which decodes greedily, or with top-k 50, when the model's own generation config says so."""
        greedy = settings.temperature == 0
        drawn = {} if greedy else {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": 0}
        fixed = {"do_sample": not greedy, "max_new_tokens": limit, "eos_token_id": self._eos_ids, "repetition_penalty": 1.0}
        return drawn | fixed

    # the reply

    def _read(self, reply: dict[str, Any], prompt: np.ndarray, form: Form) -> Sampled:
        """A completion out of a reply. `BrokenReply` where something is missing, `ServerError` where it is not what was asked for."""
        choice = _choice(reply)
        if form.api == "text":
            self._check_count(reply, prompt)
        reason = choice.get("finish_reason")
        finished = (
            FINISHED.get(reason) if isinstance(reason, str) and reason not in ("abort", "tool_calls", "function_call") else None
        )
        if finished is None:
            raise BrokenReply(f"finish_reason is {reason!r}, expected stop or length")
        text = self._text(choice, form)
        ids = _token_ids(choice)
        theirs = choice.get("prompt_token_ids") or reply.get("prompt_token_ids")
        if ids is None or (form.api != "tokens" and theirs != prompt.tolist()):
            return Sampled(None, None, finished, text)
        return self._ended(ids, _logps(choice, len(ids)), finished)

    def _ended(self, ids: list[int], logps: np.ndarray | None, finished: bool) -> Sampled:
        """With the end token, whether or not the server showed it: one that it left out has no log-prob, and so none is kept."""
        ends = [position for position, token in enumerate(ids) if token in self._vocabulary.end_ids]
        if ends:
            stop = ends[0] + 1
            return Sampled(np.array(ids[:stop], np.int32), None if logps is None else logps[:stop], True)
        if not finished or self._vocabulary.end_id is None:
            return Sampled(np.array(ids, np.int32), logps, finished)
        return Sampled(np.array([*ids, self._vocabulary.end_id], np.int32), None, True)

    def _text(self, choice: dict[str, Any], form: Form) -> str:
        """The answer as written; `ServerError` where the server keeps part of it elsewhere."""
        if form.api != "chat":
            text = choice.get("text")
        else:
            message = choice.get("message")
            if not isinstance(message, dict):
                raise BrokenReply("its choice has no message")
            for part in ("reasoning_content", "reasoning", "tool_calls"):
                if message.get(part):
                    raise ServerError(
                        f"server {self.config.url} splits '{part}' from the answer, which could not be trained on whole.\n"
                        "  Start it without a reasoning or tool parser, or send token ids (--server.api tokens)."
                    )
            text = message.get("content")
        if not isinstance(text, str):
            raise BrokenReply(f"its answer is {text!r}, expected text")
        return text

    def _check_count(self, reply: dict[str, Any], prompt: np.ndarray) -> None:
        """Text is tokenized by the server: as many tokens as here, or it is another prompt."""
        theirs = _count(reply, "prompt_tokens")
        if theirs is not None and theirs != len(prompt):
            raise ServerError(
                f"server {self.config.url} reads a prompt of {len(prompt)} tokens as {theirs}, so it would not answer what is trained on.\n"
                "  Let it serve the model that --model names, or send messages (--server.api chat)."
            )

    def _lines(self, reply: dict[str, Any], prompt: np.ndarray, form: Form) -> list[str]:
        sent = {"tokens": "token ids", "text": "text", "chat": "messages, under the server's own chat template"}[form.api]
        lines = [f"server {self.config.url}: model {self._model}; prompts are sent as {sent}"]
        if not self.gives_ids:
            lines.append("the server gives no token ids: completions are kept as text, which the trainer tokenizes")
        if not self.gives_logps:
            lines.append("no log-probs are kept: where training needs the sampler's, it scores the completions first")
        theirs = _count(reply, "prompt_tokens")
        if form.api == "chat" and theirs is not None and theirs != len(prompt):
            lines.append(
                f"warning: the server reads the first prompt as {theirs} tokens, the tokenizer of --model as {len(prompt)}: "
                "another model or another chat template."
            )
        return lines


def _choice(reply: dict[str, Any]) -> dict[str, Any]:
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise BrokenReply("it has no single choice")
    return choices[0]


def _count(reply: dict[str, Any], name: str) -> int | None:
    usage = reply.get("usage")
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) else None


def _token_ids(choice: dict[str, Any]) -> list[int] | None:
    """Ids of the completion: vLLM's field, or those that llama.cpp writes beside its log-probs."""
    ids = choice.get("token_ids")
    if ids is None and (entries := _entries(choice)) is not None:
        ids = [entry.get("id") for entry in entries]
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        return None
    return ids


def _logps(choice: dict[str, Any], count: int) -> np.ndarray | None:
    """float32 [T] of the completion's tokens; None where there is not a finite one for each."""
    logprobs = choice.get("logprobs")
    entries = _entries(choice)
    values = [entry.get("logprob") for entry in entries] if entries is not None else None
    if values is None and isinstance(logprobs, dict):
        values = logprobs.get("token_logprobs")
    if not isinstance(values, list) or len(values) != count:
        return None
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        return None
    return np.array(values, np.float32)


def _entries(choice: dict[str, Any]) -> list[dict[str, Any]] | None:
    """One entry a token, in the form of chat completions, which llama.cpp uses everywhere."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        return None
    return content
