"""A server on loopback that speaks as vLLM, llama.cpp, `transformers serve` or a hosted API do, and fails when a test tells it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Kind = Literal["vllm", "llama.cpp", "transformers", "hosted"]
EOS = 2
PLAIN = {"model", "prompt", "messages", "max_tokens", "temperature", "top_p", "seed", "logprobs"}


@dataclass
class Answer:
    """One HTTP response."""

    body: Any
    """dict or list: as JSON; bytes: as they are"""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    promised: int | None = None
    """content-length, where it is not the truth"""


def refuses(status: int, message: str, **headers: str) -> Answer:
    return Answer({"error": {"message": message}}, status, {name.replace("_", "-"): value for name, value in headers.items()})


Fault = Callable[[int, dict[str, Any]], Answer | None]
"""(number of the request, from 0, the probing one included; its body) → what happens instead of an answer, None = nothing"""


def drawn(seed: int, limit: int) -> tuple[list[int], bool]:
    """Token ids that depend on the seed alone, and whether they end: about half do."""
    ids = [3 + (seed // 7**step) % 40 for step in range(1 + seed % 6)]
    return (ids[:limit], False) if len(ids) >= limit else ([*ids, EOS], True)


def logp(token: int) -> float:
    """A log-prob that a test can tell."""
    return -token / 16


class ModelServer:
    """Serves one model, "stub"; prompt texts have a token per character."""

    def __init__(self, kind: Kind, fault: Fault | None = None, *, letters: str = "") -> None:
        """letters: the text of token ids from 3 on."""
        self.kind, self.fault, self.letters = kind, fault, letters
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.times: list[float] = []
        self.at_once = self.most_at_once = 0
        self._counting = threading.Lock()
        self._server = _listen(self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        """Refuse connections from now on."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        with self._counting:
            number = len(self.bodies)
            self.bodies.append(body)
            self.paths.append(path)
            self.times.append(time.monotonic())
            self.at_once += 1
            self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            fault = self.fault(number, body) if self.fault else None
            return fault or self._refusal(path, body) or Answer(self._reply(path, body))
        finally:
            with self._counting:
                self.at_once -= 1

    def text(self, ids: list[int]) -> str:
        return "".join(self.letters[token - 3] for token in ids if token != EOS)

    def _refusal(self, path: str, body: dict[str, Any]) -> Answer | None:
        if self.kind == "hosted":
            if path == "/v1/completions":
                return refuses(404, "no such endpoint")
            unknown = body.keys() - (PLAIN - {"max_tokens", "logprobs"} | {"max_completion_tokens"})
            return refuses(400, f"unknown parameter {min(unknown)}") if unknown else None
        if self.kind == "transformers":
            unknown = body.keys() - PLAIN - {"generation_config"}
            if unknown:
                return refuses(422, f"Unexpected fields in the request: {sorted(unknown)}")
            if not isinstance(body.get("prompt", ""), str):
                return refuses(400, "prompt must be a string.")
        return None

    def _reply(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        limit = body.get("max_tokens") or body["max_completion_tokens"]
        ids, ended = drawn(body["seed"], limit)
        prompt = body.get("prompt") or "".join(turn["content"] for turn in body["messages"])
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop" if ended else "length", "logprobs": None}
        if path == "/v1/chat/completions":
            choice["message"] = {"role": "assistant", "content": self.text(ids)}
        else:
            choice["text"] = self.text(ids)
        if self.kind == "vllm":
            choice |= {"token_ids": ids, "prompt_token_ids": prompt}
            if "logprobs" in body:
                choice["logprobs"] = {"tokens": ids, "token_logprobs": [logp(token) for token in ids]}
        if self.kind == "llama.cpp" and "logprobs" in body:
            shown = [token for token in ids if token != EOS]
            choice["logprobs"] = {"content": [{"id": token, "token": "?", "logprob": logp(token)} for token in shown]}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
        return {"id": "1", "object": "text_completion", "created": 0, "model": "stub", "choices": [choice], "usage": usage}


def _listen(model: ModelServer) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send(Answer({"object": "list", "data": [{"id": "stub"}]}))

        def do_POST(self) -> None:
            self.send(model.post(self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))

        def send(self, answer: Answer) -> None:
            data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            promised = len(data) if answer.promised is None else answer.promised
            for name, value in {"content-type": "application/json", "content-length": str(promised), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
            self.close_connection = answer.promised is not None

        def log_message(self, *_: object) -> None:
            """Nothing on the console."""

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            """A client that has gone away is part of some tests."""

    return Listener(("127.0.0.1", 0), Handler)


@contextmanager
def serving(kind: Kind, fault: Fault | None = None, *, letters: str = "") -> Iterator[ModelServer]:
    """A server for the length of a test."""
    server = ModelServer(kind, fault, letters=letters)
    try:
        yield server
    finally:
        server.close()
