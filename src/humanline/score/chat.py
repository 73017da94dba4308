"""Chat completions from an OpenAI-compatible server: patient with a busy one, and quick to learn what a peculiar one refuses."""

from __future__ import annotations

import dataclasses
import email.utils
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from humanline.errors import ConfigError, ServerError
from humanline.score.config import Judge

if TYPE_CHECKING:
    import openai

LONGEST_WAIT = 600.0
"""seconds: a server that asks for more is out of quota, not busy"""
LONGEST_BACKOFF = 60.0
"""seconds between two attempts where the server names no time"""
TOP_LOGPROBS = 20
"""likeliest tokens asked for at each position, the most that OpenAI gives"""
BUSY = (408, 409, 429)
HOPELESS = (401, 402, 404)
"""every further call would fail alike; not 403, by which some servers mean the content of one call"""


class Token(NamedTuple):
    """A position of a reply."""

    text: str
    likely: Mapping[str, float]
    """token → log-probability, nats"""


class Reply(NamedTuple):
    """What the model said."""

    text: str
    tokens: tuple[Token, ...] | None
    """None: the server gave no log-probs"""


class Unanswered(Exception):
    """A call that came to nothing; `why` is counted, `note` explains. `lost`: the server itself did not answer."""

    def __init__(self, why: str, note: str, *, lost: bool = False) -> None:
        super().__init__(f"{why}: {note}")
        self.why, self.note, self.lost = why, note, lost


@dataclass(frozen=True)
class Dialect:
    """What a server takes. It starts out with everything asked for; each refusal drops one thing."""

    response_format: bool
    logprobs: bool
    temperature: bool
    limit: str = "max_tokens"
    """the name of the token limit: reasoning models refuse it and want max_completion_tokens"""

    def without(self, message: str) -> Dialect | None:
        """The next thing to try after a refusal that says `message`; None: there is nothing left to drop."""
        if self.limit == "max_tokens" and ("max_tokens" in message or "max_completion_tokens" in message):
            return dataclasses.replace(self, limit="max_completion_tokens")
        if self.logprobs and "logprob" in message:
            return dataclasses.replace(self, logprobs=False)
        if self.temperature and "temperature" in message:
            return dataclasses.replace(self, temperature=False)
        if self.response_format:  # servers word this one in many ways, so it goes whatever they say
            return dataclasses.replace(self, response_format=False)
        return None


class Chat:
    """One model at one server. Safe to share between threads."""

    def __init__(self, settings: Judge, *, response_format: bool, logprobs: bool) -> None:
        key = os.environ.get(settings.key_variable)
        if not key and settings.base_url is None and not os.environ.get("OPENAI_BASE_URL"):
            raise ConfigError(
                f"scorer judge: neither scorer.base_url nor a key in ${settings.key_variable} is given. "
                "Set the variable, or `--scorer.base-url http://localhost:8000/v1` for a server of your own."
            )
        self.settings = settings
        self.dialect = Dialect(response_format, logprobs, settings.temperature is not None)
        self._key = key or "none"
        self._client: openai.OpenAI | None = None
        self._opening = threading.Lock()
        self._stopped = threading.Event()

    @property
    def client(self) -> openai.OpenAI:
        """Opened on first use. It does not retry by itself: that is done here, where attempts and waits are known."""
        import openai

        with self._opening:
            if self._client is None:
                self._client = openai.OpenAI(
                    api_key=self._key, base_url=self.settings.base_url, timeout=self.settings.timeout, max_retries=0
                )
            return self._client

    @property
    def name(self) -> str:
        """The model and where it is, for messages."""
        return f"judge {self.settings.model!r} at {self.settings.base_url or self.client.base_url}"

    def start(self) -> None:
        """Calls wait for their next attempt, as they do from the beginning."""
        self._stopped.clear()

    def stop(self) -> None:
        """Calls that wait for their next attempt give up, until the next `start`."""
        self._stopped.set()

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        with self._opening:
            if self._client is not None:
                self._client.close()
                self._client = None

    def ask(self, prompt: str) -> Reply:
        """The model's reply to one user message. Raises `Unanswered` for this call, `ServerError` where every call would fail."""
        attempt = 0
        while True:
            try:
                return _reply(self._call(prompt), self.settings.max_tokens)
            except _Passing as fault:
                if attempt == self.settings.retries:
                    attempts = "1 attempt" if attempt == 0 else f"{attempt + 1} attempts"
                    raise Unanswered(fault.why, f"{fault.note} ({attempts})", lost=True) from fault.__cause__
                wait = min(self.settings.backoff * 2.0**attempt, LONGEST_BACKOFF) if fault.wait is None else fault.wait
                if wait > LONGEST_WAIT:
                    raise Unanswered(fault.why, f"the server asks to wait for {wait:.0f} s", lost=True) from fault.__cause__
                if self._stopped.wait(wait):
                    raise Unanswered("stopped", fault.note, lost=True) from fault.__cause__
                attempt += 1

    def _call(self, prompt: str) -> Any:
        """One request, repeated at once in another dialect where the server refuses a setting; what worked is remembered."""
        import openai

        dialect = self.dialect
        while True:
            try:
                response = self.client.chat.completions.create(**self._body(prompt, dialect))
            except openai.APIStatusError as error:
                simpler = dialect.without(error.message) if error.status_code in (400, 422) else None
                if simpler is None:
                    raise self._fault(error) from error
                dialect = simpler
            except openai.APITimeoutError as error:
                raise _Passing("timeout", f"no reply within {self.settings.timeout:g} s") from error
            except openai.APIConnectionError as error:
                raise _Passing("no connection", str(error.__cause__ or error)) from error
            except (openai.APIError, json.JSONDecodeError) as error:
                raise _Passing("unreadable reply", str(error)) from error
            else:
                if dialect is not self.dialect:
                    self.dialect = dialect
                return response

    def _body(self, prompt: str, dialect: Dialect) -> dict[str, Any]:
        messages = [{"role": "user", "content": prompt}]
        body: dict[str, Any] = {"model": self.settings.model, "messages": messages, dialect.limit: self.settings.max_tokens}
        if dialect.temperature:
            body["temperature"] = self.settings.temperature
        if dialect.response_format:
            body["response_format"] = {"type": "json_object"}
        if dialect.logprobs:
            body |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        return body

    def _fault(self, error: openai.APIStatusError) -> Exception:
        """What a status means: to be tried again, this call's own fault, or the end."""
        status, message = error.status_code, error.message
        if status in HOPELESS or error.code == "insufficient_quota":
            moves = {401: "Check the key in $" + self.settings.key_variable, 404: "Check --scorer.model and --scorer.base-url"}
            return ServerError(f"{self.name} refuses: {message}. {moves.get(status, 'Check the account and its rights')}.")
        if status in BUSY or status >= 500:
            return _Passing(f"HTTP {status}", message, retry_after(error.response.headers))
        return Unanswered(f"HTTP {status}", message)


class _Passing(Exception):
    """A fault that another attempt may not have. wait: seconds that the server asks for."""

    def __init__(self, why: str, note: str, wait: float | None = None) -> None:
        super().__init__(f"{why}: {note}")
        self.why, self.note, self.wait = why, note, wait


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds until another attempt is welcome, from `retry-after-ms` or `Retry-After` in seconds or as a date; None: not said."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name, "")
        try:
            seconds = float(value) * unit
        except ValueError:
            continue
        return seconds if seconds >= 0 else None
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return max(0.0, email.utils.mktime_tz(date) - time.time()) if date else None


def _reply(response: Any, max_tokens: int) -> Reply:
    """The text of a response and its log-probs; `Unanswered` for one without an answer."""
    choices = getattr(response, "choices", None)
    if not choices:
        raise _Passing("unreadable reply", f"expected choices, got {str(response)[:80]!r}")
    choice = choices[0]
    text = choice.message.content if choice.message is not None else None
    if choice.finish_reason == "length":
        raise Unanswered("reply cut", f"at {max_tokens} tokens, before its end. Raise --scorer.max-tokens")
    if choice.finish_reason == "content_filter" or not text:
        refusal = getattr(choice.message, "refusal", None)
        raise Unanswered("no text", f"finish reason {choice.finish_reason}" + (f", refusal {refusal!r}" if refusal else ""))
    return Reply(text, _tokens(choice.logprobs))


def _tokens(logprobs: Any) -> tuple[Token, ...] | None:
    content = getattr(logprobs, "content", None)
    if not content:
        return None
    return tuple(Token(each.token, {other.token: other.logprob for other in each.top_logprobs or ()}) for each in content)
