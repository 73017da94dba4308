"""Files of results: methods × seeds × metrics, as `humanline demo` and `humanline compare` write them.

    {"format": "humanline-…",
     "methods": {"dpo": {"title": "DPO offline", "settings": {…}}, …},
     "runs": [{"method": "dpo", "seed": 0, "utility": 0.81, "seconds": 12.3, "folder": "runs/dpo-0"}, …],
     "start": {"utility": 0.15}, "settings": {…}, "versions": {…}, "machine": {…}}

Every number of a run but its seed and its count of steps is a metric; `seconds` may also be an object of seconds by part (sampling,
scoring, …). `folder` is where its run directory lies, itself or as `run` in it, seen from the file. Only `format`, `methods` and `runs`
are required.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from humanline.errors import DataError
from humanline.report.methods import Entry, Method
from humanline.report.run_folder import read_run

STEPS = "steps"
"""a number of a run that is no metric"""


class MethodRecord(BaseModel):
    """A method of the file; fields that are not listed are summaries, which the report works out itself."""

    title: str | None = None
    settings: dict[str, Any] = {}


class RunRecord(BaseModel):
    """A run of the file; its other fields are metrics if they are numbers."""

    model_config = ConfigDict(extra="allow", strict=True)
    method: str
    seed: int | None = None
    folder: str | None = None
    seconds: float | dict[str, float] | None = None

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by part; {} where only their sum is known."""
        return self.seconds if isinstance(self.seconds, dict) else {}

    @property
    def metrics(self) -> dict[str, float]:
        """Finite numbers by name; what is null was not measured."""
        seconds = math.fsum(self.parts.values()) if self.parts else self.seconds
        return finite({**(self.model_extra or {}), "seconds": seconds})


class ResultsRecord(BaseModel):
    """The whole file."""

    format: Annotated[str, Field(pattern="^humanline-")]
    methods: dict[str, MethodRecord]
    runs: Annotated[list[RunRecord], Field(min_length=1)]
    start: dict[str, float | None] = {}
    settings: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    machine: dict[str, Any] = {}


@dataclass(frozen=True)
class Results:
    """What the report shows of it."""

    methods: tuple[Method, ...]
    start: dict[str, float]
    """metrics of the model that all runs began with"""
    settings: dict[str, str]
    environment: dict[str, str]
    notes: tuple[str, ...]


def read_results(path: Path) -> Results:
    """Raises `DataError` that names what is wrong and where."""
    try:
        record = ResultsRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the document"
        raise DataError(
            f"{path}: {place}: {first['msg']}. Expected results of `humanline demo` or `humanline compare`; see docs/reporting.md."
        ) from error
    methods, missing = _methods(record, path)
    notes = []
    if record.settings.get("quick"):
        notes.append("a quick run, which shows that everything works: its numbers mean nothing")
    if missing:
        notes.append(f"without the training curves of {len(missing)} runs: {path.parent / missing[0]} … holds no run directory")
    environment = {key: str(value) for key, value in (record.versions | record.machine).items()}
    settings = {key: value if isinstance(value, str) else json.dumps(value) for key, value in record.settings.items()}
    return Results(methods, finite(record.start), settings, environment, tuple(notes))


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """The metrics among some fields."""
    numbers = {name: value for name, value in values.items() if isinstance(value, float | int) and not isinstance(value, bool)}
    return {name: float(value) for name, value in numbers.items() if name != STEPS and math.isfinite(value)}


def _methods(record: ResultsRecord, path: Path) -> tuple[tuple[Method, ...], list[str]]:
    """Methods that have runs, in the order of the file, and the folders that hold no run directory."""
    missing: list[str] = []
    entries: dict[str, list[Entry]] = {name: [] for name in record.methods}
    for number, run in enumerate(record.runs):
        if run.method not in entries:
            raise DataError(f"{path}: runs.{number} is of method {run.method!r}: expected one of {', '.join(entries)}.")
        folder = _folder(run, path.parent)
        if run.folder is not None and folder is None:
            missing.append(run.folder)
        entries[run.method].append(Entry(run.seed, run.metrics, read_run(folder) if folder else None, run.parts))
    return tuple(
        Method(record.methods[name].title or name, tuple(found), record.methods[name].settings)
        for name, found in entries.items()
        if found
    ), missing


def _folder(run: RunRecord, base: Path) -> Path | None:
    """Its run directory, where it lies beside the file."""
    candidates = [] if run.folder is None else [base / run.folder / "run", base / run.folder]
    return next((folder for folder in candidates if (folder / "config.yaml").is_file()), None)
