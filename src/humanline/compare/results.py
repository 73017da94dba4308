"""From finished runs to what they say: values by method, wall-clock by part, claims; and results.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from humanline.compare.claims import ClaimResult, judge
from humanline.compare.jobs import Job
from humanline.compare.study import Study
from humanline.report.statistics import Spread
from humanline.rundir import settings

FORMAT = "humanline-comparison-1"
PARTS = {"sampling": "sampling", "scoring": "scoring", "reference": "reference", "train": "training"}
"""parts of a run's seconds that stand by themselves, and what they are called; the others are `other`"""


@dataclass(frozen=True)
class RunRecord:
    """What one run came to."""

    method: str
    seed: int
    folder: str
    """seen from the folder of the comparison"""
    steps: int
    values: dict[str, float]
    """by metric"""
    measured_at: dict[str, int]
    """the step of each value that comes from metrics.jsonl"""
    seconds: dict[str, float]
    """by part; {} = not known: the run was resumed, and its clock began anew"""
    resumed: dict[str, Any] | None
    """first step and seconds of the last part of a run that was resumed"""
    versions: dict[str, str]
    machine: dict[str, Any]


@dataclass(frozen=True)
class MethodResult:
    """One method over its seeds."""

    name: str
    values: dict[str, tuple[float, ...]]
    """by metric, in the order of the seeds"""
    runs: int
    """that are finished"""
    seconds: dict[str, float]
    """wall-clock by part (sampling, scoring, reference, training, other), mean over the runs that were not interrupted"""
    timed: int
    """how many those are"""

    def spread(self, metric: str) -> Spread | None:
        """n, mean and sample standard deviation; None = not measured."""
        return Spread.of(self.values[metric]) if metric in self.values else None


@dataclass(frozen=True)
class Result:
    """What a comparison came to."""

    study: Study
    processes: int
    """runs at the same time: they share the machine, and so do their seconds"""
    threads: int
    """of each of them"""
    runs: tuple[RunRecord, ...]
    failed: dict[str, str]
    """{run: why it has no result}"""
    methods: tuple[MethodResult, ...]
    claims: tuple[ClaimResult, ...]
    notes: tuple[str, ...]
    """what a reader has to know before the numbers"""

    @property
    def metrics(self) -> tuple[str, ...]:
        """All that was measured."""
        return tuple(dict.fromkeys(metric for method in self.methods for metric in method.values))


def record(job: Job, study: Study) -> RunRecord:
    """What a complete run left behind. Raises a `HumanlineError` where something is missing."""
    values, measured_at = job.values(study.metrics)
    summary = json.loads((job.folder / "summary.json").read_bytes())
    resumed = summary["steps"]["first"] > 1
    last_part = {"first_step": summary["steps"]["first"], "seconds": summary["seconds"]}
    return RunRecord(
        job.method,
        job.config.seed,
        str(job.folder.relative_to(study.out)),
        job.steps()[0],
        values,
        measured_at,
        {} if resumed else summary["seconds"],
        last_part if resumed else None,
        summary["versions"],
        summary["machine"],
    )


def summarise(study: Study, runs: Sequence[RunRecord], failed: Mapping[str, str], *, processes: int, threads: int) -> Result:
    """All that can be told from the runs there are."""
    methods = tuple(_method(name, [run for run in runs if run.method == name]) for name in study.methods)
    values = {method.name: method.values for method in methods}
    claims = judge(study.claims, values, seeds=len(study.seeds), alpha=study.alpha)
    return Result(study, processes, threads, tuple(runs), dict(failed), methods, tuple(claims), tuple(_notes(study, runs)))


def _method(name: str, runs: Sequence[RunRecord]) -> MethodResult:
    metrics = dict.fromkeys(metric for run in runs for metric in run.values)
    values = {metric: tuple(run.values[metric] for run in runs if metric in run.values) for metric in metrics}
    timed = [by_part(run.seconds) for run in runs if run.seconds]
    parts = dict.fromkeys(part for seconds in timed for part in seconds)
    seconds = {part: math.fsum(run[part] for run in timed) / len(timed) for part in parts}
    return MethodResult(name, values, len(runs), seconds, len(timed))


def by_part(seconds: Mapping[str, float]) -> dict[str, float]:
    """Sampling, scoring, reference, training and other; what a run has not done took it no time."""
    parts = {title: seconds.get(part, 0.0) for part, title in PARTS.items()}
    return parts | {"other": math.fsum(value for part, value in seconds.items() if part not in PARTS)}


def _notes(study: Study, runs: Sequence[RunRecord]) -> list[str]:
    """Ways in which the runs are not alike."""
    notes = []
    if resumed := sum(run.resumed is not None for run in runs):
        notes.append(f"{resumed} of {len(runs)} runs were resumed: their seconds are not known and not in the table")
    for metric in study.metrics:
        steps = {run.method: run.measured_at[metric] for run in runs}
        if len(set(steps.values())) > 1:
            listed = ", ".join(f"{method} {step}" for method, step in steps.items())
            notes.append(
                f"{metric} is the newest value, which is not of the same step in all methods ({listed}): they are not compared at the "
                "same point. Measure the finished runs instead, by held-out rows or a function"
            )
    environments = {json.dumps([run.versions, run.machine], sort_keys=True): run for run in runs}
    if len(environments) > 1:
        first, second = [*environments.values()][:2]
        changed = [
            f"{key}: {ours[key]} and {theirs.get(key)}"
            for ours, theirs in ((first.versions, second.versions), (first.machine, second.machine))
            for key in ours
            if ours[key] != theirs.get(key)
        ]
        notes.append(f"the runs were not made under the same conditions ({'; '.join(changed)})")
    return notes


def content(result: Result) -> dict[str, Any]:
    """results.json: everything that is known about a comparison, in JSON types. `humanline report` reads it."""
    study = result.study
    return {
        "format": FORMAT,
        "methods": {method.name: _method_content(method, study) for method in result.methods},
        "claims": [asdict(claim.claim) | {k: v for k, v in asdict(claim).items() if k != "claim"} for claim in result.claims],
        "runs": [_run_content(run) for run in result.runs],
        "failed": result.failed,
        "notes": list(result.notes),
        "settings": {
            "study": study.source,
            "seeds": list(study.seeds),
            "measure": list(study.measure),
            "alpha": study.alpha,
            "runs at the same time": result.processes,
            "threads of a run": result.threads,
        },
        "versions": result.runs[0].versions if result.runs else {},
        "machine": result.runs[0].machine if result.runs else {},
    }


def _method_content(method: MethodResult, study: Study) -> dict[str, Any]:
    config = study.methods[method.name]
    spreads = {metric: Spread.of(values)._asdict() for metric, values in method.values.items()}
    return {
        "title": method.name,
        "runs": method.runs,
        "metrics": spreads,
        "seconds": method.seconds,
        "timed_runs": method.timed,
        "settings": {"model": config.model, "data": config.data} | {k: v for k, v in settings(config).items() if k != "seed"},
    }


def _run_content(run: RunRecord) -> dict[str, Any]:
    facts = {"method": run.method, "seed": run.seed, "steps": run.steps, "folder": run.folder, "measured_at": run.measured_at}
    return (
        facts | run.values | ({"seconds": run.seconds} if run.seconds else {}) | ({"resumed": run.resumed} if run.resumed else {})
    )
