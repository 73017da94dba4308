"""The file of a judge's work: every judgement as soon as it is there, so that none is paid for twice."""

from __future__ import annotations

import fcntl
import hashlib
import json
import threading
from pathlib import Path
from typing import IO, Any

from humanline.errors import ScoringError


def content_key(content: Any) -> str:
    """Content address of a JSON value: equal content, equal key."""
    text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Jobs:
    """Judgements by content key. With a path: JSON lines, appended as they come, read back by the next run. ASCII, so that a
    line torn by a kill is torn between characters.

    A line with `failed` says why a call came to nothing. It is a record for people and never an answer: the next run asks again.
    """

    def __init__(self, path: str | None) -> None:
        self.path = Path(path) if path else None
        self._done: dict[str, dict[str, Any]] = {}
        self._file: IO[str] | None = None
        self._writing = threading.Lock()

    def open(self) -> None:
        """Read what is there and keep others from writing. Does nothing if it is open already or has no path."""
        if self.path is None or self._file is not None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("a+", encoding="ascii", newline="\n")
        except OSError as error:
            raise ScoringError(
                f"job file {self.path} cannot be written: {error.strerror}. Choose another with --scorer.jobs."
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read(file)
        except BlockingIOError as error:
            file.close()
            raise ScoringError(
                f"job file {self.path} is in use by another process. Wait for it, or name another with --scorer.jobs."
            ) from error
        except BaseException:
            file.close()
            raise
        self._file = file

    def _read(self, file: IO[str]) -> None:
        file.seek(0)
        lines = file.read().split("\n")
        torn = lines.pop()  # what a killed run left of its last line, or ""
        for number, line in enumerate(lines, 1):
            try:
                job = json.loads(line)
                if "failed" not in job:
                    self._done[job["key"]] = job
            except (ValueError, KeyError, TypeError) as error:
                raise ScoringError(
                    f"{self.path}:{number}: not a line of judgements ({type(error).__name__}: {error}).\n"
                    "  Expected a file written by an earlier run. Name another with --scorer.jobs."
                ) from error
        if torn:
            file.truncate(len("\n".join([*lines, ""]).encode()))
            file.seek(0, 2)

    def get(self, key: str) -> dict[str, Any] | None:
        """A finished judgement."""
        return self._done.get(key)

    def add(self, job: dict[str, Any]) -> None:
        """Record a judgement, or with `failed` a call that came to nothing. Safe from any thread."""
        with self._writing:
            if "failed" not in job:
                self._done[job["key"]] = job
            if self._file is not None:
                self._file.write(json.dumps(job) + "\n")
                self._file.flush()

    def close(self) -> None:
        """Let others write."""
        if self._file is not None:
            self._file.close()
            self._file = None
