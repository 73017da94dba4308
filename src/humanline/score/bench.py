"""Many questions to one judge: each asked once, several at a time, the answers kept in the job file as they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

from humanline.errors import ConfigError, ServerError
from humanline.score.chat import Chat, Reply, Unanswered
from humanline.score.config import Judge
from humanline.score.jobs import Jobs, content_key

FEWEST_LOST = 4
"""calls in a row that a server may leave unanswered, or as many as are made at a time, before the run stops"""
Read = Callable[[Reply], dict[str, Any]]
"""reply → what it says, with at least its `mode`; raises `Unanswered` for one that says nothing usable"""


class Question(NamedTuple):
    """What a judge is asked."""

    prompt: str
    about: Mapping[str, Any] = {}
    """recorded with the answer, e.g. in which order two answers were shown"""


class Bench:
    """A judge at its server, with its job file."""

    def __init__(self, settings: Judge, read: Read, probe: str) -> None:
        """probe: a question asked before anything else, so that a server that cannot judge costs one call."""
        if not settings.model:
            raise ConfigError("scorer.model is empty: a judge is the name of a model at its server. Set `--scorer.model NAME`.")
        weighted = settings.mode == "weighted"
        self.settings, self._read, self._probe_prompt = settings, read, probe
        self.chat = Chat(settings, response_format=not weighted, logprobs=weighted)
        self.jobs = Jobs(settings.jobs)
        self._probed = False
        self._lost = 0
        """calls in a row that the server left unanswered"""

    def answers(self, questions: Sequence[Question]) -> list[dict[str, Any] | Unanswered]:
        """What `read` made of each reply, or why there is none. Equal questions are asked once, answered ones not again."""
        self.jobs.open()
        keys = [self.key(question.prompt) for question in questions]
        new = {key: question for key, question in zip(keys, questions, strict=True) if self._known(key) is None}
        failed = self._ask_all(new) if new else {}
        return [self._known(key) or failed[key] for key in keys]

    def check(self) -> None:
        """Try the judge now, by its probe, instead of with its first question. `ServerError` if it cannot judge."""
        self.chat.start()
        if not self._probed:
            self._probe()

    def key(self, prompt: str) -> str:
        """Content address of a judgement: whatever may change it, and nothing else."""
        judged_by = {name: getattr(self.settings, name) for name in ("model", "mode", "low", "high", "temperature", "max_tokens")}
        return content_key({"prompt": prompt, **judged_by})

    def close(self) -> None:
        """Give back connections and the job file."""
        self.chat.close()
        self.jobs.close()

    def _known(self, key: str) -> dict[str, Any] | None:
        """A finished judgement, unless it fell back to another mode and that is not wanted now."""
        job = self.jobs.get(key)
        return job if job and (job["mode"] == self.settings.mode or self.settings.fallback) else None

    def _ask_all(self, new: Mapping[str, Question]) -> dict[str, Unanswered]:
        """Ask all; returns the failures. `ServerError` when the server has stopped answering altogether."""
        self.check()
        failed: dict[str, Unanswered] = {}
        with ThreadPoolExecutor(self.settings.concurrency) as threads:
            futures = {threads.submit(self._ask, key, question): key for key, question in new.items()}
            try:
                for future in as_completed(futures):
                    fault = future.result()
                    self._lost = self._lost + 1 if fault is not None and fault.lost else 0
                    if fault is not None:
                        failed[futures[future]] = fault
                        if self._lost >= max(FEWEST_LOST, self.settings.concurrency):
                            raise ServerError(self._stopped_answering(fault))
            except BaseException:
                self.chat.stop()
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        return failed

    def _ask(self, key: str, question: Question) -> Unanswered | None:
        """One judgement into the job file; a failure too, and back to the caller."""
        try:
            reply = self.chat.ask(question.prompt)
            self.jobs.add({"key": key, **question.about, **self._read(reply), "model": self.settings.model, "reply": reply.text})
        except Unanswered as fault:
            self.jobs.add({"key": key, **question.about, "failed": fault.why, "note": fault.note})
            return fault
        return None

    def _stopped_answering(self, fault: Unanswered) -> str:
        kept = f"What it judged is in {self.jobs.path}; the same command goes on from there" if self.jobs.path else "Start again"
        return (
            f"{self.chat.name} stopped answering: {self._lost} calls in a row came to nothing, the last with {fault}.\n  {kept}."
        )

    def _probe(self) -> None:
        """One call; what it shows to be impossible would be so for every row."""
        try:
            reply = self.chat.ask(self._probe_prompt)
        except Unanswered as fault:
            raise ServerError(f"{self.chat.name} does not answer, as a first call showed: {fault}.") from fault
        try:
            self._read(reply)
        except Unanswered as fault:
            raise ServerError(
                f"{self.chat.name} does not judge, as a first call showed: {fault}.\n  It replied {reply.text[:200]!r}."
            ) from fault
        self._probed = True
