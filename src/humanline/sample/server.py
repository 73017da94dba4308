"""Requests to an OpenAI-compatible server: passing faults are tried again, everything else is a `ServerError` with the next move."""

from __future__ import annotations

import asyncio
import email.utils
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from datetime import timezone
from typing import TYPE_CHECKING, Any, TypeVar

from humanline.errors import ConfigError, ServerError
from humanline.sample.config import ServerConfig

if TYPE_CHECKING:
    import openai

Answer = TypeVar("Answer")

PASSING = frozenset({408, 409, 425, 429})
"""status codes below 500 that may be gone on a further try"""
LONGEST_WAIT = 60.0
"""seconds of a wait between tries, unless the server asks for more"""


class Refused(ServerError):
    """The server understood and said no: trying again changes nothing."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class BrokenReply(Exception):
    """A reply that is no answer: cut, not JSON, or without what the protocol promises. Tried again."""


class Server:
    """One server. Requests run concurrently in a thread of their own, so that they can be cancelled at once."""

    def __init__(self, config: ServerConfig) -> None:
        import openai

        self.config = config
        self._faults = openai
        self._client = openai.AsyncOpenAI(
            base_url=config.url,
            # Servers of one's own ask for no key, but the client wants one.
            api_key=os.environ.get("OPENAI_API_KEY") or "none",
            max_retries=0,
            timeout=config.timeout,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="humanline requests", daemon=True)
        self._thread.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is under way and close all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def model(self) -> str:
        """The name to ask for: the configured one, else the only one listed."""
        if self.config.model is not None:
            return self.config.model
        names = self._await(self._request("GET", "/models", None, _listed, threading.Event()))
        if len(names) != 1:
            listed = ", ".join(names[:5]) if names else "none"
            raise ConfigError(
                f"server.model is null, and {self.config.url} lists {listed}: expected one. Name it with --server.model."
            )
        return names[0]

    def post(self, path: str, body: Mapping[str, Any], read: Callable[[dict[str, Any]], Answer]) -> Answer:
        """What `read` makes of the reply. A `BrokenReply` that it raises is a passing fault."""
        return self._await(self._request("POST", path, body, read, threading.Event()))

    def submit(
        self, path: str, body: Mapping[str, Any], read: Callable[[dict[str, Any]], Answer], give_up: threading.Event
    ) -> Future[Answer]:
        """`post` without waiting. Once `give_up` is set, nothing is tried again."""
        return asyncio.run_coroutine_threadsafe(self._request("POST", path, body, read, give_up), self._loop)

    def _await(self, request: Coroutine[Any, Any, Answer]) -> Answer:
        future = asyncio.run_coroutine_threadsafe(request, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        read: Callable[[dict[str, Any]], Answer],
        give_up: threading.Event,
    ) -> Answer:
        for attempt in range(self.config.retries + 1):
            try:
                return read(await self._once(method, path, body))
            except self._faults.APIStatusError as error:
                fault: Exception = error
                if error.status_code not in PASSING and error.status_code < 500:
                    raise Refused(self._refusal(path, error), error.status_code) from error
            except (self._faults.APIConnectionError, BrokenReply) as error:
                fault = error
            if attempt == self.config.retries or give_up.is_set():
                break
            await asyncio.sleep(self._pause(attempt, fault))
        raise ServerError(self._failure(path, fault, attempt + 1)) from fault

    async def _once(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            if method == "GET":
                reply = await self._client.get(path, cast_to=object)
            else:
                reply = await self._client.post(path, cast_to=object, body=body)
        except ValueError as error:  # the client's JSON decoder
            raise BrokenReply(f"its reply is not JSON ({error})") from error
        if not isinstance(reply, dict):
            raise BrokenReply(f"its reply is no JSON object but {str(reply)[:60]!r}")
        return reply

    def _pause(self, attempt: int, fault: Exception) -> float:
        """Seconds until the next try: what the server asks for, else doubling, spread so that many requests do not return at once."""
        asked = retry_after(getattr(getattr(fault, "response", None), "headers", {}))
        if asked is not None:
            return asked
        return min(self.config.backoff * 2**attempt, LONGEST_WAIT) * random.uniform(0.5, 1.0)

    def _refusal(self, path: str, error: openai.APIStatusError) -> str:
        moves = {
            401: "Set the key in the environment, OPENAI_API_KEY.",
            403: "Set the key in the environment, OPENAI_API_KEY.",
            404: "Check --server.url, which ends in /v1, and --server.model.",
        }
        move = moves.get(error.status_code, "Check --server.model and what the server supports.")
        return f"server {self.config.url} refuses {path} with status {error.status_code}: {_reason(error)}\n  {move}"

    def _failure(self, path: str, fault: Exception, tries: int) -> str:
        after = f"after {tries} {'try' if tries == 1 else 'tries'}"
        where = f"server {self.config.url}"
        if isinstance(fault, self._faults.APITimeoutError):
            late = f"{where} gave no answer to {path} within {self.config.timeout:g} s, {after}."
            return f"{late}\n  Raise --server.timeout, or lower --server.concurrency."
        if isinstance(fault, self._faults.APIConnectionError):
            return f"{where} cannot be reached, or broke off, {after}: {fault.__cause__ or fault}. Is it running? Check --server.url."
        if isinstance(fault, self._faults.APIStatusError):
            status = f"{where} answers {path} with status {fault.status_code} {after}: {_reason(fault)}"
            return f"{status}\n  Look into the server's log, lower --server.concurrency, or raise --server.retries."
        return f"{where} answers {path} with something else, {after}: {fault}. Is it an OpenAI-compatible server?"


def _listed(reply: dict[str, Any]) -> list[str]:
    """Names in a reply of /models."""
    listed = reply.get("data")
    if not isinstance(listed, list):
        raise BrokenReply("its list of models has no 'data'")
    return [str(entry["id"]) for entry in listed if isinstance(entry, dict) and "id" in entry]


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a Retry-After header asks to wait, given as a number or a date; None without one."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        when = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    return max(0.0, when.timestamp() - time.time())


def _reason(error: openai.APIStatusError) -> str:
    """The first line of what the server says."""
    body = error.body
    if isinstance(body, Mapping):
        body = body.get("message") or body.get("detail") or body
    return str(body or error.message).strip().splitlines()[0][:300]
