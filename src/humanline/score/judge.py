"""A language model as judge, behind an OpenAI-compatible API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from humanline.data.record import listed
from humanline.errors import ConfigError, ScoringError
from humanline.score.chat import Chat, Reply, Unanswered
from humanline.score.config import Judge
from humanline.score.conversation import turns_of_item
from humanline.score.item import Item, Scorer, Verdict
from humanline.score.jobs import Jobs, content_key
from humanline.score.judge_prompt import grading_prompt
from humanline.score.judge_reply import find_score, weigh

FEWEST_LOST = 4
"""calls in a row that a server may leave unanswered, or as many as are made at a time, before the run stops"""
PROBE = Item("What is 2 + 2?", "4")
"""judged once before anything else, so that a server that cannot judge costs one call"""


class JudgeScorer(Scorer):
    """Grades on a scale. A judgement that fails stays missing, is counted, and is asked for again by the next run."""

    def __init__(self, settings: Judge) -> None:
        if not settings.model:
            raise ConfigError("scorer.model is empty: a judge is the name of a model at its server. Set `--scorer.model NAME`.")
        self.settings = settings
        self.label = settings.label or settings.name
        weighted = settings.mode == "weighted"
        self.chat = Chat(settings, response_format=not weighted, logprobs=weighted)
        self.jobs = Jobs(settings.jobs)
        self._probed = False

    def verdicts(self, items: Sequence[Item]) -> list[Verdict]:
        """Equal conversations are judged once."""
        self.jobs.open()
        keys: list[str | Verdict] = []
        new: dict[str, str] = {}
        for item in items:
            prompt = self._prompt(item)
            key = prompt if isinstance(prompt, Verdict) else self.key(prompt)
            keys.append(key)
            if isinstance(prompt, str) and isinstance(key, str) and self._known(key) is None:
                new[key] = prompt
        failed = self._ask_all(new) if new else {}
        return [key if isinstance(key, Verdict) else self._verdict(key, failed) for key in keys]

    def key(self, prompt: str) -> str:
        """Content address of a judgement: whatever may change the score, and nothing else."""
        judged_by = {name: getattr(self.settings, name) for name in ("model", "mode", "low", "high", "temperature", "max_tokens")}
        return content_key({"prompt": prompt, **judged_by})

    def close(self) -> None:
        self.chat.close()
        self.jobs.close()

    def _prompt(self, item: Item) -> str | Verdict:
        missing = [name for name in self.settings.show if item.row.get(name) is None]
        if missing:
            return Verdict(None, "no such column", f"scorer.show has {missing[0]!r} (columns: {listed(item.row)})")
        return grading_prompt(self.settings, turns_of_item(item), {name: item.row[name] for name in self.settings.show})

    def _known(self, key: str) -> dict[str, Any] | None:
        """A finished judgement, unless it fell back to another mode and that is not wanted now."""
        job = self.jobs.get(key)
        return job if job and (job["mode"] == self.settings.mode or self.settings.fallback) else None

    def _verdict(self, key: str, failed: Mapping[str, Verdict]) -> Verdict:
        job = self._known(key)
        if job is None:
            return failed[key]
        return Verdict(job["score"], note=f"{job['mode']}: {job['reason']}" if job["reason"] else job["mode"])

    def _ask_all(self, new: Mapping[str, str]) -> dict[str, Verdict]:
        """Judge every new prompt, several at a time; returns the failures. Each result is in the job file before the next is asked."""
        self.chat.start()
        if not self._probed:
            self._probe()
        failed: dict[str, Verdict] = {}
        lost = 0
        with ThreadPoolExecutor(self.settings.concurrency) as threads:
            futures = {threads.submit(self._judge, key, prompt): key for key, prompt in new.items()}
            try:
                for future in as_completed(futures):
                    fault = future.result()
                    if fault is None:
                        lost = 0
                        continue
                    failed[futures[future]] = Verdict(None, fault.why, fault.note, fault)
                    lost = lost + 1 if fault.lost else 0
                    if lost >= max(FEWEST_LOST, self.settings.concurrency):
                        raise ScoringError(self._stopped_answering(fault, lost, len(new)))
            except BaseException:
                self.chat.stop()
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        return failed

    def _stopped_answering(self, fault: Unanswered, lost: int, asked: int) -> str:
        kept = f"What it judged is in {self.jobs.path}; the same command goes on from there" if self.jobs.path else "Start it again"
        return f"{self.chat.name} stopped answering: {lost} of {asked} calls in a row came to nothing, the last with {fault}. {kept}."

    def _judge(self, key: str, prompt: str) -> Unanswered | None:
        """One judgement into the job file; a failure too, and back to the caller."""
        try:
            reply = self.chat.ask([{"role": "user", "content": prompt}])
            self.jobs.add({"key": key, **self._read(reply), "model": self.settings.model, "reply": reply.text})
        except Unanswered as fault:
            self.jobs.add({"key": key, "failed": fault.why, "note": fault.note})
            return fault
        return None

    def _read(self, reply: Reply) -> dict[str, Any]:
        found = find_score(reply.text, self.settings.low, self.settings.high)
        if self.settings.mode == "number":
            return {"score": found.value, "mode": "number", "reason": found.reason}
        digits = {str(digit): float(digit) for digit in range(int(self.settings.low), int(self.settings.high) + 1)}
        score = weigh(reply.tokens, reply.text, found.position, digits)
        if score is not None:
            return {"score": score, "mode": "weighted", "reason": found.reason}
        if self.settings.fallback:
            return {"score": found.value, "mode": "number", "reason": found.reason}
        raise Unanswered("no log-probs", "the reply has none for its score. Use --scorer.fallback to take the number as written")

    def _probe(self) -> None:
        """One call; what it shows to be impossible would be so for every row."""
        prompt = self._prompt(PROBE) if not self.settings.show else grading_prompt(self.settings, turns_of_item(PROBE), {})
        assert isinstance(prompt, str)
        try:
            reply = self.chat.ask([{"role": "user", "content": prompt}])
        except Unanswered as fault:
            raise ScoringError(f"{self.chat.name} does not answer, as a first call showed: {fault}.") from fault
        try:
            self._read(reply)
        except Unanswered as fault:
            raise ScoringError(f"{self.chat.name} does not judge, as a first call showed: {fault}.\n  It replied {reply.text[:200]!r}.") from fault
        self._probed = True
