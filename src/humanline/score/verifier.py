"""The math verifier: `equivalence.compare` in processes of its own, so that a time limit really ends the work.

A time limit inside the calling process would need SIGALRM, which exists in the main thread only and does not interrupt C code. Here a
warm worker answers within `limit` seconds of wall-clock or is killed and replaced, whoever asks: a thread, asyncio, a process pool.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import selectors
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any, NamedTuple

from humanline.errors import ConfigError, ScoringError
from humanline.score.config import Math
from humanline.score.gold import gold_answers
from humanline.score.item import Item, Scorer, Verdict
from humanline.score.thoughts import after_thoughts

START_LIMIT = 120.0
"""seconds for a worker to import its libraries, on the slowest disk"""
_SERVE = "import sys; sys.path[:] = sys.argv[1:]; from humanline.score.verifier_worker import serve; serve()"


class Comparison(NamedTuple):
    """What the verifier says of one answer."""

    right: bool | None
    """None: no verdict, for the reason `why`"""
    found: str
    """the extracted answer, "" if there is none"""
    why: str
    """"timeout", "gold answer not readable", "verifier died", or "" """
    seconds: float
    """CPU time of the comparison; the limit where it was killed"""


class Verifier:
    """Compares answers in worker processes, each started on first use. Safe to share between threads, to fork and to pickle."""

    def __init__(self, *, limit: float = 5.0, processes: int = 1, precision: int = 6, set_relations: bool = False) -> None:
        """limit: seconds of wall-clock per comparison · precision: decimals · set_relations: see `config.Math`."""
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("scorer math needs the package math-verify, which is not installed. Run `pip install math-verify`.")
        self.limit, self.processes = limit, processes
        self.options = {"precision": precision, "set_relations": set_relations, "limit": limit}
        self._open()

    def __getstate__(self) -> dict[str, Any]:
        return {"limit": self.limit, "processes": self.processes, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def _open(self) -> None:
        self._owner = os.getpid()
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(self.processes):
            self._idle.put(None)
        self._end = weakref.finalize(self, _stop_all, self._idle, self._owner)

    def compare(self, golds: Sequence[str], text: str) -> Comparison:
        """Whether the answer in `text` is mathematically equal to one of `golds`."""
        if os.getpid() != self._owner:  # forked: the workers answer to the parent
            self._end.detach()
            _PARENTS.append(self._idle)
            self._open()
        worker = self._idle.get()
        try:
            if worker is not None and not worker.alive:
                worker.stop()
                worker = None
            worker = worker or _Worker()
            reply = worker.ask({"golds": list(golds), "text": text, **self.options}, self.limit)
        finally:
            self._idle.put(worker)
        if isinstance(reply, str):
            return Comparison(None, "", reply, self.limit)
        return Comparison(
            reply["right"], reply["found"], "" if reply["right"] is not None else "gold answer not readable", reply["seconds"]
        )

    def compare_all(self, questions: Sequence[tuple[Sequence[str], str]]) -> list[Comparison]:
        """`compare` for each (golds, text), in order, by all worker processes."""
        if self.processes == 1 or len(questions) < 2:
            return [self.compare(*question) for question in questions]
        with ThreadPoolExecutor(self.processes) as threads:
            return list(threads.map(lambda question: self.compare(*question), questions))

    def close(self) -> None:
        """Stop the workers; the next comparison starts new ones."""
        if os.getpid() == self._owner:
            self._end()
            self._open()


_PARENTS: list[object] = []
"""workers of a parent process, kept from being collected in a fork of it"""


def _stop_all(idle: queue.LifoQueue[_Worker | None], owner: int) -> None:
    if os.getpid() != owner:
        return
    with contextlib.suppress(queue.Empty):
        while True:
            worker = idle.get_nowait()
            if worker is not None:
                worker.stop()


class _Worker:
    """One process that compares answers."""

    def __init__(self) -> None:
        paths = [path or os.getcwd() for path in sys.path]
        self._process = subprocess.Popen([sys.executable, "-c", _SERVE, *paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._unread = b""
        if not isinstance(self._read(START_LIMIT), dict):
            self.stop()
            raise ScoringError(
                f"the math verifier's worker process does not start: {sys.executable} ended with {self._process.returncode}."
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: dict[str, Any], limit: float) -> dict[str, Any] | str:
        """The reply, or why there is none. Whatever keeps the reply from coming, an interruption too, ends the process."""
        assert self._process.stdin is not None
        reply: dict[str, Any] | str = "verifier died"
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(question).encode() + b"\n")
                self._process.stdin.flush()
                reply = self._read(limit)
        finally:
            if isinstance(reply, str):
                self.stop()
        return reply

    def _read(self, limit: float) -> dict[str, Any] | str:
        """The next line of the process, waiting `limit` seconds at most."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return "timeout"
                received = os.read(self._process.stdout.fileno(), 65536)
                if not received:
                    return "verifier died"
                self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def stop(self) -> None:
        """Kill the process, whatever it does, and wait for its end."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class MathScorer(Scorer):
    """1 right, 0 wrong or no answer; a timeout is neither and stays unscored. The extracted answer stands in the note."""

    def __init__(self, settings: Math) -> None:
        self.settings = settings
        self.label = settings.label or settings.name
        self.verifier = Verifier(
            limit=settings.limit, processes=settings.processes, precision=settings.precision, set_relations=settings.set_relations
        )

    def verdicts(self, items: Sequence[Item]) -> list[Verdict]:
        golds = [gold_answers(item.row, self.settings.gold) for item in items]
        texts = [after_thoughts(item.answer) for item in items]
        asked = [
            (gold, text) for gold, text in zip(golds, texts, strict=True) if not isinstance(gold, Verdict) and text is not None
        ]
        compared = iter(self.verifier.compare_all(asked))
        verdicts = []
        for gold, text in zip(golds, texts, strict=True):
            if isinstance(gold, Verdict):
                verdicts.append(gold)
            elif text is None:
                verdicts.append(Verdict(0.0, note="no answer: the thoughts do not end", found=""))
            else:
                verdicts.append(_verdict(next(compared), gold, self.settings.limit))
        return verdicts

    def facts(self) -> dict[str, Any]:
        return {name: version(name) for name in ("math-verify", "latex2sympy2-extended", "sympy")}

    def close(self) -> None:
        self.verifier.close()


def _verdict(compared: Comparison, golds: Sequence[str], limit: float) -> Verdict:
    gold = " or ".join(golds)
    if compared.right is None:
        return Verdict(None, compared.why, f"after {limit:g} s" if compared.why == "timeout" else f"gold {gold}")
    return Verdict(float(compared.right), note=f"answer {compared.found or '(none)'}, gold {gold}", found=compared.found)
