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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline.errors import DataError
from humanline.report.methods import Entry, Method
from humanline.report.run_folder import read_run

NO_METRICS = ("seed", "steps")


@dataclass(frozen=True)
class Results:
    """The content of such a file."""

    methods: tuple[Method, ...]
    start: dict[str, float]
    """metrics of the model that all runs began with"""
    settings: dict[str, str]
    environment: dict[str, str]
    notes: tuple[str, ...]


def read_results(path: Path) -> Results:
    """Raises `DataError` that names what is missing."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}). Expected results of `humanline demo` or `humanline compare`.") from error
    found = content.get("format") if isinstance(content, dict) else None
    if not (isinstance(found, str) and found.startswith("humanline-")):
        raise DataError(
            f'{path}: has format {found!r}: expected results of `humanline demo` or `humanline compare` ("format": "humanline-…"). '
            "Is this another program's file?"
        )
    try:
        return _results(content, path)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: not as expected ({type(error).__name__}: {error}). See docs/reporting.md for its fields."
        ) from error


def _results(content: dict[str, Any], path: Path) -> Results:
    missing: list[str] = []
    entries: dict[str, list[Entry]] = {name: [] for name in content["methods"]}
    titles = {name: str(about.get("title", name)) for name, about in content["methods"].items()}
    for number, run in enumerate(content["runs"]):
        if run["method"] not in entries:
            raise DataError(f"{path}: runs[{number}] is of method {run['method']!r}: expected one of {', '.join(entries)}.")
        folder = _folder(run, path.parent)
        if "folder" in run and not folder:
            missing.append(run["folder"])
        entries[run["method"]].append(Entry(run.get("seed"), _numbers(run), read_run(folder) if folder else None, _parts(run)))
    notes = []
    if content.get("settings", {}).get("quick"):
        notes.append("a quick run, which shows that everything works: its numbers mean nothing")
    if missing:
        notes.append(f"without the training curves of {len(missing)} runs: {path.parent / missing[0]} … holds no run directory")
    methods = tuple(
        Method(titles[name], tuple(found), content["methods"][name].get("settings", {}))
        for name, found in entries.items()
        if found
    )
    if not methods:
        raise DataError(f"{path}: holds no run. Expected at least one; has the comparison ended before its first?")
    environment = {key: str(value) for part in ("versions", "machine") for key, value in content.get(part, {}).items()}
    settings = {key: value if isinstance(value, str) else json.dumps(value) for key, value in content.get("settings", {}).items()}
    return Results(methods, _numbers(content.get("start", {})), settings, environment, tuple(notes))


def _numbers(run: dict[str, Any]) -> dict[str, float]:
    """The metrics of a run; null and what is not finite are missing."""
    values = {name: value for name, value in run.items() if isinstance(value, float | int) and not isinstance(value, bool)}
    if parts := _parts(run):
        values["seconds"] = math.fsum(parts.values())
    return {name: float(value) for name, value in values.items() if name not in NO_METRICS and math.isfinite(value)}


def _parts(run: dict[str, Any]) -> dict[str, float]:
    """Seconds by part."""
    seconds = run.get("seconds")
    return {part: float(value) for part, value in seconds.items()} if isinstance(seconds, dict) else {}


def _folder(run: dict[str, Any], base: Path) -> Path | None:
    """Its run directory, where it lies beside the file."""
    candidates = [base / run["folder"] / "run", base / run["folder"]] if "folder" in run else []
    return next((folder for folder in candidates if (folder / "config.yaml").is_file()), None)
