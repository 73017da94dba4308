"""Runs grouped into methods: one method, several seeds. From run directories or from a file of results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from humanline.report.metrics_file import Metrics
from humanline.report.quantities import HELD_OUT, PROGRESS
from humanline.report.run_folder import Run
from humanline.report.thin import Series

HEADLINE = ("rollout_reward", *(HELD_OUT + metric for metric in PROGRESS), HELD_OUT + "loss")
TAIL = 0.1
"""share of the steps, at the end, over which training metrics are averaged for the table at the top"""


@dataclass(frozen=True)
class Entry:
    """One seed of a method."""

    seed: int | None
    values: dict[str, float]
    """what it came to, by metric"""
    run: Run | None
    """its training, where that is at hand"""
    stated_parts: dict[str, float] = field(default_factory=dict)
    """seconds by part, as a file of results says them"""

    @property
    def parts(self) -> dict[str, float]:
        """Wall-clock seconds by what they were spent on; {} = not known."""
        return self.stated_parts or (self.run.parts if self.run else {})


@dataclass(frozen=True)
class Method:
    """One row of the table at the top."""

    title: str
    entries: tuple[Entry, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    """what it is, as a file of results says it; {} for run directories, which have their config"""
    evaluated: bool = True
    """its values are a comparison's own measurements; False: they are taken from the metrics of its training"""

    def values(self, metric: str) -> list[float]:
        """By seed; seeds without it are left out."""
        return [entry.values[metric] for entry in self.entries if metric in entry.values]

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(entry.run for entry in self.entries if entry.run)


def group(runs: Sequence[Run]) -> list[Method]:
    """Runs that share all settings but the seed are one method, in the order in which they were named."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(json.dumps(run.method, sort_keys=True, default=str), []).append(run)
    titles = _titles(list(alike.values()))
    moving = _moving(runs)
    return [
        Method(
            title,
            tuple(Entry(run.seed, outcome(run, moving), run) for run in sorted(same, key=lambda run: run.seed)),
            evaluated=False,
        )
        for title, same in zip(titles, alike.values(), strict=True)
    ]


def outcome(run: Run, moving: frozenset[str]) -> dict[str, float]:
    """Newest scores of fresh samples and of the held-out metrics in `moving`; without either, the end of the training metrics."""
    metrics = run.metrics
    found = {name: value for name in HEADLINE if name in moving and (value := metrics.last(name)) is not None}
    if not found:
        found = {name: value for name in PROGRESS if (value := _tail_mean(metrics, name)) is not None}
    return found | ({"seconds": run.seconds} if run.seconds else {})


def _tail_mean(metrics: Metrics, name: str) -> float | None:
    """Mean over the last tenth of the steps; None where no value there is finite."""
    if name not in metrics.series:
        return None
    steps, values = metrics.series[name]
    tail = values[(steps > metrics.last_step * (1 - TAIL)) & np.isfinite(values)]
    return float(tail.mean()) if len(tail) else None


def _moving(runs: Sequence[Run]) -> frozenset[str]:
    """Metrics that change in some run. A held-out one that never does tells about the file (offline rewards), not about the policy."""

    def moves(series: Series) -> bool:
        return len(series.values) == 1 or bool((series.values != series.values[0]).any())

    return frozenset(name for name in HEADLINE for run in runs if name in run.metrics.series and moves(run.metrics.series[name]))


def _titles(groups: Sequence[Sequence[Run]]) -> list[str]:
    """A single run by the shortest end of its path that tells it apart, several seeds by their settings."""
    folders = [run.folder for same in groups for run in same]
    return unique([f"{describe(same[0])}" if len(same) > 1 else short_name(same[0].folder, folders) for same in groups])


def describe(run: Run) -> str:
    """`grpo, clip [−1.5, 1.5], k 16, lr 0.003`"""
    settings = run.settings
    words = [str(settings["objective.name"])]
    if settings["limit.name"] == "clip":
        words.append(f"clip [{settings.get('limit.low')}, {settings.get('limit.high')}]")
    elif settings["limit.name"] != "off":
        words.append(str(settings["limit.name"]))
    if settings["sync_every"] not in (None, "null"):
        words.append(f"k {settings['sync_every']}")
    return ", ".join([*words, f"lr {settings.get('optimizer.lr')}"])


def short_name(folder: Path, among: Iterable[Path]) -> str:
    """The last parts of a path, as many as tell it from the others."""
    own = folder.resolve()
    others = [other.resolve().parts for other in among if other.resolve() != own]
    for count in range(1, len(own.parts)):
        end = own.parts[-count:]
        if all(other[-count:] != end for other in others):
            return "/".join(end)
    return str(own)


def unique(titles: Sequence[str]) -> list[str]:
    """Titles that stand for different methods, numbered where they are the same."""
    seen: dict[str, int] = {}
    result = []
    for title in titles:
        seen[title] = seen.get(title, 0) + 1
        result.append(f"{title} ({seen[title]})" if titles.count(title) > 1 else title)
    return result


def differences(methods: Sequence[Method]) -> dict[str, tuple[str, ...]]:
    """{setting: its value in each method} where they are not all the same."""
    flat = [method.runs[0].method if method.runs else method.settings for method in methods]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = {key: tuple(_shown(settings.get(key, "–")) for settings in flat) for key in keys}
    return {key: row for key, row in rows.items() if len(set(row)) > 1}


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
