"""Errors that users see.

Each names the value, its place, what was expected and the next move. All derive from `HumanlineError`; those caused by what a
user passed in are also `ValueError`, so that plain `except ValueError` works.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HumanlineError(Exception):
    """Base of every error this package raises on purpose. The command line prints it without a traceback."""


class ConfigError(HumanlineError, ValueError):
    """A setting has a wrong name, type, range, or does not fit another setting."""


class DataError(HumanlineError, ValueError):
    """A file, row or field is not what the objective needs. The message starts with `file:line`."""


class ModelError(HumanlineError, ValueError):
    """A model or tokenizer cannot be loaded, or does not do what training needs."""


class CheckpointError(HumanlineError, ValueError):
    """A checkpoint or run directory is missing, incomplete, in use, or belongs to another run."""


class TrainingError(HumanlineError, RuntimeError):
    """Training had to stop: a loss or gradient is not finite, or a step has nothing to train on."""


class ScoringError(HumanlineError, RuntimeError):
    """Scoring had to stop: a server refuses every call, nothing could be scored, or `on_error: raise` met an unscored completion."""


class ServerError(HumanlineError, RuntimeError):
    """A model server cannot be reached, refuses, or does not answer as its protocol says."""


class Interrupted(HumanlineError):
    """A signal asked the run to stop; it saved a checkpoint first."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal

    def __reduce__(self) -> tuple[type[Interrupted], tuple[str, int]]:
        """Pickles with both arguments, so that it can travel out of a worker process."""
        return type(self), (str(self), self.signal)


def nearest(word: str, known: Iterable[str]) -> str:
    """The sentence ` Did you mean …?` for an error message, or nothing when no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
