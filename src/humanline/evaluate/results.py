"""The folder of an evaluation: who may write to it, what it was started with, and what came out."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from humanline import __version__
from humanline.errors import CheckpointError
from humanline.evaluate.outputs import write_json

FORMAT = "humanline-evaluation-1"
FREE_ON_RESUME = ("resume", "rescore", "out")
"""settings that say how to go on, and are no part of what is evaluated"""
LIBRARIES = ("numpy", "scikit-learn")
"""that numbers depend on, besides those which a scorer names itself"""


class EvaluationFolder:
    """An open folder; one process may hold it at a time.

    `going_on`: its results may be written over. Otherwise `CheckpointError` when there are any.
    """

    def __init__(self, out: str, *, going_on: bool) -> None:
        self.path = Path(out)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = open(self.path / ".lock", "w")  # noqa: SIM115 (held for the length of the evaluation)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be written: {error}. Choose another --out.") from error
        try:
            self._take_lock(going_on)
        except BaseException:
            self._lock.close()
            raise

    def _take_lock(self, going_on: bool) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CheckpointError(f"{self.path} is in use by another process. Wait for it, or choose another --out.") from error
        if self.settings.exists() and not going_on:
            raise CheckpointError(f"{self.path} holds an evaluation. Add --resume to go on with it, or choose another --out.")

    @property
    def settings(self) -> Path:
        return self.path / "settings.json"

    @property
    def results(self) -> Path:
        return self.path / "results.json"

    def __enter__(self) -> EvaluationFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def begin(self, settings: Mapping[str, Any], *, fixed: Sequence[str]) -> None:
        """Write the settings down. Raises `CheckpointError` when `fixed` ones are not those the folder was begun with."""
        before = self.begun_with()
        different = [name for name in fixed if before and before.get(name) != settings[name]]
        changed = [f"{name}: {before.get(name)} then, {settings[name]} now" for name in different]
        if changed:
            raise CheckpointError(
                f"{self.path}: begun with other settings, so going on would mix two evaluations:\n  "
                + "\n  ".join(changed)
                + "\n"
                "  Leave these as they were, or choose another --out."
            )
        write_json(self.settings, dict(settings))

    def begun_with(self) -> dict[str, Any]:
        """The settings of the evaluation so far; {} for none."""
        if not self.settings.exists():
            return {}
        try:
            settings = json.loads(self.settings.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CheckpointError(f"{self.settings} is not valid JSON: {error}. Choose another --out.") from error
        assert isinstance(settings, dict), "as it was written"
        return settings


def plain(settings: Any) -> dict[str, Any]:
    """A configuration as JSON values, without what says how to go on."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings)))
    names = {"scorer": {"name": settings.scorer.name}}
    return {
        name: names.get(name, {}) | value if isinstance(value, dict) else value
        for name, value in values.items()
        if name not in FREE_ON_RESUME
    }


def versions() -> dict[str, str]:
    """Of this package, Python, and the libraries of the statistics."""
    return {"humanline": __version__, "python": platform.python_version()} | {name: version(name) for name in LIBRARIES}


def fingerprints(*paths: str) -> dict[str, str]:
    """{path: SHA-256} of input files; names of data sets, which are no files, have none."""
    return {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths if path and Path(path).is_file()}


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as aligned lines: the first column to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    ]
