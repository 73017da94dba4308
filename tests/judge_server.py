"""A real OpenAI-compatible server on loopback, which answers as a test tells it to and records what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """One HTTP response."""

    body: Any = None
    """dict = as JSON; text = as it is; None = the connection is closed without a response"""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """seconds before it is sent"""


def says(text: str | None, *, finish: str = "stop", likely: list[tuple[str, dict[str, float]]] | None = None) -> Answer:
    """A chat completion. likely: per token its text and {token: log-prob} of the likeliest."""
    logprobs = None
    if likely is not None:
        content = [
            {"token": token, "logprob": 0.0, "top_logprobs": [{"token": name, "logprob": logp} for name, logp in top.items()]}
            for token, top in likely
        ]
        logprobs = {"content": content}
    choice = {"index": 0, "finish_reason": finish, "logprobs": logprobs, "message": {"role": "assistant", "content": text}}
    return Answer({"id": "1", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice]})


def grades(score: Any) -> Answer:
    """A reply in the form that is asked for."""
    return says(json.dumps({"reason": "because", "score": score}))


def refuses(status: int, message: str, **headers: str) -> Answer:
    """An error as servers write it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer({"error": {"message": message, "type": "stub", "param": None, "code": None}}, status, named)


class JudgeServer:
    """`answer(number, body)` gives the response to the request of that number, counted from 0."""

    def __init__(self, answer: Callable[[int, dict[str, Any]], Answer]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.most_at_a_time = 0
        self._at_a_time = 0
        self._counting = threading.Lock()
        self._ending = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with outer._counting:
                    number = len(outer.bodies)
                    outer.bodies.append(body)
                    outer.times.append(time.monotonic())
                    outer._at_a_time += 1
                    outer.most_at_a_time = max(outer.most_at_a_time, outer._at_a_time)
                try:
                    outer._send(self, answer(number, body))
                finally:
                    with outer._counting:
                        outer._at_a_time -= 1

            def log_message(self, *_: object) -> None:
                """Nothing on the console."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that has gone away is part of some tests."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def _send(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        self._ending.wait(answer.delay)
        if answer.body is None or self._ending.is_set():
            handler.close_connection = True
            return
        text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
        handler.send_response(answer.status)
        for name, value in {
            "content-type": "application/json",
            "content-length": str(len(text.encode())),
            **answer.headers,
        }.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(text.encode())

    def die(self) -> None:
        """Stop answering, also to those who wait, and refuse connections."""
        if not self._ending.is_set():
            self._ending.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def prompts(self) -> list[str]:
        """What was asked, without the first call, which only tries the judge."""
        return [body["messages"][0]["content"] for body in self.bodies[1:]]


@contextmanager
def serving(answer: Callable[[int, dict[str, Any]], Answer]) -> Iterator[JudgeServer]:
    """A server for the length of a test."""
    server = JudgeServer(answer)
    try:
        yield server
    finally:
        server.die()
