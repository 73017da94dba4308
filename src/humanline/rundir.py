"""A run directory: who may write to it, and what it was started with.

RUN/config.yaml        loads back to the same run
    metrics.jsonl      a line per optimizer step
    summary.json       seconds by part, versions, machine; see humanline.summary
    checkpoints/       see humanline.checkpoint
    reference.safetensors   log-probs of a reference that never moves
    final/             the trained model in Hugging Face format
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from humanline import checkpoint, configfile
from humanline.config import TrainConfig
from humanline.errors import CheckpointError

FREE_ON_RESUME = ("out", "resume", "log", "checkpoint", "device", "micro_batch_tokens", "reference_cache", "data")
"""settings that may differ when a run goes on: they change no number, or (data) are compared by content"""


class RunDirectory:
    """An open run directory. One run may hold it at a time; of its processes, the main one holds the lock and writes."""

    def __init__(self, config: TrainConfig, *, main: bool = True) -> None:
        self.path = Path(config.out)
        self._lock: IO[str] | None = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if main:
                self._lock = open(self.path / ".lock", "w")  # noqa: SIM115 (held for the length of the run)
        except (OSError, ValueError) as error:  # ValueError: a NUL, or half of a surrogate pair
            raise CheckpointError(f"run directory {config.out!r} cannot be written: {error}. Choose another --out.") from error
        if self._lock:
            self._take_lock(self._lock)
        try:
            self.resumed = self._check(config)
        except BaseException:
            self.close()
            raise
        self.steps = checkpoint.steps(self.path) if self.resumed else []

    def _take_lock(self, file: IO[str]) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise CheckpointError(
                f"run directory {self.path} is in use by another process. Wait for it, or choose another --out."
            ) from error

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint to go on from; None = start at step 1."""
        return checkpoint.path_of(self.path, self.steps[-1]) if self.steps else None

    def _check(self, config: TrainConfig) -> bool:
        """Whether this continues an earlier run; refuses to mix two runs."""
        saved = self.path / "config.yaml"
        others = sorted(entry.name for entry in self.path.iterdir() if entry.name not in (".lock", ".config.yaml.partial"))
        if not config.resume:
            if others:
                raise CheckpointError(
                    f"run directory {self.path} is not empty ({', '.join(others[:4])}{' …' if len(others) > 4 else ''}). "
                    "Add --resume to go on with its run, or choose another --out."
                )
            return False
        if not saved.is_file():
            if others:
                raise CheckpointError(
                    f"run directory {self.path} has no config.yaml, so there is no run to resume. Choose another --out."
                )
            return False
        if (self.path / "final").is_dir():
            raise CheckpointError(
                f"the run in {self.path} has finished: its model is {self.path / 'final'}. Train on from there with "
                f"--model {self.path / 'final'} and another --out."
            )
        found = differences(settings(configfile.load_config(saved)), settings(config))
        if found:
            raise CheckpointError(
                f"run directory {self.path} was started with other settings, so going on would be another run:\n  "
                + "\n  ".join(found)
                + "\n  Leave these as they were, or start a new run from the trained weights with --model and another --out."
            )
        return True

    def write_config(self, config: TrainConfig) -> None:
        """Record what the run was started with (once: a run that goes on from a checkpoint keeps its own)."""
        if not self.steps:
            temporary = self.path / ".config.yaml.partial"
            try:
                temporary.write_text(configfile.dump(config), encoding="utf-8")
                os.replace(temporary, self.path / "config.yaml")
            finally:
                temporary.unlink(missing_ok=True)  # on a full disk it would keep the run from being started again

    def close(self) -> None:
        """Give the directory free."""
        if self._lock:
            self._lock.close()


def settings(config: TrainConfig) -> dict[str, Any]:
    """By key path, every setting that a number may depend on, as JSON gives it back."""

    def flat(value: Any, key: str) -> dict[str, Any]:
        if not dataclasses.is_dataclass(value):
            return {key: value}
        parts = [
            flat(getattr(value, field.name), f"{key}.{field.name}" if key else field.name) for field in dataclasses.fields(value)
        ]
        return {name: entry for part in parts for name, entry in part.items()}

    kept = {key: value for key, value in flat(config, "").items() if key.split(".")[0] not in FREE_ON_RESUME}
    return dict(json.loads(json.dumps(kept, default=str)))


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """A line for each setting that is not what it was."""
    return [
        f"{key}: {before.get(key, '(none)')} then, {now.get(key, '(none)')} now"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    ]
