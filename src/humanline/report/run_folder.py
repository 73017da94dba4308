"""A run directory as a report sees it: whatever state the run is in."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from humanline.errors import CheckpointError, ConfigError, DataError
from humanline.report.foreign import not_a_run
from humanline.report.metrics_file import Metrics, read_metrics
from humanline.report.perception import Perception, read_perception
from humanline.report.samples import SampleFile, read_samples
from humanline.report.thin import Series

State = Literal["finished", "running", "stopped"]
UNRELATED = ("seed", "out", "resume", "log", "checkpoint", "device", "micro_batch_tokens", "reference_cache")
"""settings in which two runs of one method may differ"""
LIMITER_SHARES = ("clipped_low", "clipped_high")
"""0 by definition where there is no limiter"""


@dataclass(frozen=True)
class Summary:
    """RUN/summary.json (humanline.summary)."""

    first_step: int
    seconds: dict[str, float]
    """by part, from `first_step` on; {} until the run has finished"""
    environment: dict[str, str]


@dataclass(frozen=True)
class Run:
    """What one run has left behind so far."""

    folder: Path
    settings: dict[str, Any]
    """{key path: value} of config.yaml"""
    yaml: str
    metrics: Metrics
    state: State
    total: int | None
    """optimizer steps it was to do; None = not known"""
    summary: Summary | None
    perception: Perception | None
    samples: tuple[SampleFile, ...]
    notes: tuple[str, ...]

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @property
    def method(self) -> dict[str, Any]:
        """The settings that make it the same method as another run."""
        return {key: value for key, value in self.settings.items() if key.split(".")[0] not in UNRELATED}

    @property
    def seconds(self) -> float:
        """Wall-clock as far as it is known."""
        return math.fsum(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        """Wall-clock by what it was spent on.

        `not split`: steps of which only the sum is known, since the run has not finished or they came before a resume.
        """
        split = self.summary.seconds if self.summary else {}
        series = self.metrics.series.get("seconds")
        if series is None:
            return split
        unsplit = series.values[series.steps < self.summary.first_step] if self.summary and split else series.values
        return split | ({"not split": float(unsplit.sum())} if len(unsplit) else {})

    @property
    def progress(self) -> str:
        """`step 7 of 12`"""
        return f"step {self.metrics.last_step}" + (f" of {self.total}" if self.total else "")


def read_run(folder: Path) -> Run:
    """Raises `CheckpointError` for a directory that holds no run of ours, `DataError` for a file in it that is damaged."""
    if not (folder / "config.yaml").is_file():
        raise CheckpointError(not_a_run(folder))
    settings, text, config_notes = _settings(folder / "config.yaml")
    path = folder / "metrics.jsonl"
    metrics = read_metrics(path) if path.is_file() else Metrics({}, 0, 0)
    if settings["limit.name"] == "off":
        metrics = dataclasses.replace(metrics, series=_without(metrics.series, LIMITER_SHARES))
    summary, finished, last = _summary(folder)
    planned = settings["steps"]
    total = last or (planned if isinstance(planned, int) else None) or _total_of_checkpoint(folder)
    state: State = "finished" if finished else "running" if _is_locked(folder) else "stopped"
    perception_file = folder / "perception.json"
    run = Run(
        folder=folder,
        settings=settings,
        yaml=text,
        metrics=metrics,
        state=state,
        total=total,
        summary=summary,
        perception=read_perception(perception_file) if perception_file.is_file() else None,
        samples=tuple(read_samples(file, name) for name, file in _sample_files(folder).items()),
        notes=(*config_notes, *metrics.notes),
    )
    return dataclasses.replace(run, notes=(*_state_notes(run), *run.notes))


def _sample_files(folder: Path) -> dict[str, Path]:
    """{name: file}: samples that were put there, and the newest window of fresh data."""
    files = {file.stem: file for file in sorted(folder.glob("samples*.jsonl"))}
    windows = sorted((folder / "rollouts").glob("step-*.jsonl"))
    return files | ({f"fresh samples for {windows[-1].stem}": windows[-1]} if windows else {})


def _without(series: dict[str, Series], names: Collection[str]) -> dict[str, Series]:
    return {name: found for name, found in series.items() if name not in names}


def _settings(path: Path) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """({key path: value}, text, notes). A config of another version of this package is shown as it is."""
    from humanline.configfile import load_config

    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return _flat(dataclasses.asdict(load_config(path))), text, ()
    except ConfigError as error:
        plain = _flat(_plain(text))
        if not {"objective.name", "limit.name", "sync_every", "seed", "steps"} <= plain.keys():
            raise CheckpointError(f"{path} is no config of `humanline train`: {error}") from error
        return plain, text, (f"config.yaml is of another version of humanline: {error}",)


def _plain(text: str) -> dict[str, Any]:
    """YAML's mappings with every value as it is written; {} for what is none."""
    try:
        plain = yaml.load(text, yaml.BaseLoader)
    except yaml.YAMLError:
        return {}
    return plain if isinstance(plain, dict) else {}


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _summary(folder: Path) -> tuple[Summary | None, bool, int | None]:
    """(summary, whether the run has finished, its steps). Runs without the file have finished when their model is there."""
    path = folder / "summary.json"
    if not path.is_file():
        return None, (folder / "final").is_dir(), None
    try:
        content = json.loads(path.read_bytes())
        first, last, seconds = content["steps"]["first"], content["steps"]["last"], content["seconds"]
        environment = {key: str(value) for part in ("versions", "machine") for key, value in content[part].items()}
        return (
            Summary(first, {part: float(value) for part, value in seconds.items()}, environment),
            bool(content["finished"]),
            last,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} cannot be read ({error!r}). Remove it: the report does without.") from error


def _total_of_checkpoint(folder: Path) -> int | None:
    """Steps of the whole run, as its newest checkpoint says."""
    newest = _newest_checkpoint(folder)
    if newest is None:
        return None
    path = newest / "state.json"
    try:
        return int(json.loads(path.read_bytes())["of"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read ({error!r}). Remove {newest}, which could not be resumed from either.") from error


def _newest_checkpoint(folder: Path) -> Path | None:
    from humanline import checkpoint

    steps = checkpoint.steps(folder)
    return checkpoint.path_of(folder, steps[-1]) if steps else None


def _is_locked(folder: Path) -> bool:
    """Whether a process on this machine holds the run."""
    try:
        file = open(folder / ".lock", encoding="utf-8")  # noqa: SIM115 (closed below)
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _state_notes(run: Run) -> tuple[str, ...]:
    if run.state == "finished":
        return ()
    if run.state == "running":
        return (f"still going: {run.progress} when this page was made",)
    newest = _newest_checkpoint(run.folder)
    if not newest:
        return (f"ended before it was done, after {run.progress}; it left no checkpoint",)
    return (
        f"ended before it was done, after {run.progress}; {newest.name} is its newest checkpoint: "
        f"`humanline train --resume --out {run.folder}` goes on from there",
    )
