"""Errors that users see.

Each names the value, its place, what was expected and the next move. All derive from `HumanlineError`; those caused by what a
user passed in are also `ValueError`, so that plain `except ValueError` works.
"""

from __future__ import annotations


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
