"""From finished runs to `results.json`: every run, and mean ± standard deviation for every method."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

from humanline import __version__
from humanline.embedded.methods import Method


class Spread(NamedTuple):
    """Mean and sample standard deviation over seeds; the latter is None for a single run."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def show(self, digits: int) -> str:
        """`1.062 ± 0.015`"""
        return f"{self.mean:.{digits}f}" + ("" if self.std is None else f" ± {self.std:.{digits}f}")


@dataclass(frozen=True)
class Row:
    """One method over all its seeds."""

    method: Method
    utilities: tuple[float, ...]
    """by seed"""
    utility: Spread
    win_rate: Spread
    seconds: Spread
    """of CPU time, training only"""


@dataclass(frozen=True)
class Results:
    """Everything that tables, figure and page show."""

    rows: tuple[Row, ...]
    start_utility: float
    settings: dict[str, Any]
    runs: tuple[dict[str, Any], ...]


def summarise(
    methods: Iterable[Method], runs: Sequence[dict[str, Any]], start_utility: float, settings: dict[str, Any]
) -> Results:
    """Rows in the order of `methods`; methods without a finished run are left out."""
    rows = []
    for method in methods:
        own = sorted((run for run in runs if run["method"] == method.name), key=lambda run: run["seed"])
        if own:
            utilities = tuple(run["utility"] for run in own)
            win_rate, seconds = (Spread.of([run[name] for run in own]) for name in ("win_rate", "cpu_seconds"))
            rows.append(Row(method, utilities, Spread.of(utilities), win_rate, seconds))
    return Results(tuple(rows), start_utility, settings, tuple(runs))


def as_json(results: Results) -> str:
    """results.json."""
    return json.dumps(content(results), indent=2) + "\n"


def content(results: Results) -> dict[str, Any]:
    """Everything that is known about a demo, in JSON types."""
    return {
        "format": "humanline-demo-1",
        "task": "score",
        "start": {"utility": results.start_utility, "win_rate": 0.5},
        "methods": {
            row.method.name: {
                "title": row.method.title,
                "utility": row.utility._asdict(),
                "win_rate": row.win_rate._asdict(),
                "cpu_seconds": row.seconds._asdict(),
                "runs": len(row.utilities),
                "settings": row.method.settings,
            }
            for row in results.rows
        },
        "runs": list(results.runs),
        "settings": results.settings,
        "versions": {"humanline": __version__, "python": platform.python_version()}
        | {name: version(name) for name in ("torch", "transformers", "accelerate", "numpy")},
        "machine": {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()},
    }
