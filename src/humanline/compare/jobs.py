"""One run of a comparison: where it lies, how far it is, and the work itself, done in a worker process.

OUT/runs/METHOD/seed-N/       an ordinary run directory; final/ in it = trained
                measured.json what functions measured, with a hash of their source: an edited function measures again
OUT/runs/METHOD/seed-N.log    what training and measuring printed
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline import configfile
from humanline.compare.measure import MeasuringFunction, newest
from humanline.compare.study import Study
from humanline.config import TrainConfig
from humanline.errors import CheckpointError, DataError
from humanline.rundir import differences, settings

TAIL = 2**16
"""bytes at the end of metrics.jsonl, in which its last line lies"""


@dataclass(frozen=True)
class Job:
    """A method with a seed."""

    method: str
    config: TrainConfig
    """complete: with the run's directory and seed"""
    functions: tuple[MeasuringFunction, ...]
    """called on the trained run"""

    @property
    def name(self) -> str:
        return f"{self.method}, seed {self.config.seed}"

    @property
    def folder(self) -> Path:
        return Path(self.config.out)

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def trained(self) -> bool:
        return (self.folder / "final").is_dir()

    @property
    def complete(self) -> bool:
        """Trained and measured: nothing is left to do."""
        return self.trained and not self.unmeasured()

    def changed(self) -> list[str]:
        """A line for each setting in which the run that is there differs from this job."""
        saved = self.folder / "config.yaml"
        if not saved.is_file():
            return []
        found = configfile.load_config(saved)
        before, now = ({"model": config.model, "data": config.data} | settings(config) for config in (found, self.config))
        return differences(before, now)

    def steps(self) -> tuple[int, int | None]:
        """Optimizer steps done, and how many there are; None = not known before the data has been read."""
        return _last_step(self.folder / "metrics.jsonl"), self.config.steps or _planned(self.folder / "summary.json")

    def values(self, metrics: tuple[str, ...]) -> tuple[dict[str, float], dict[str, int]]:
        """({metric: value}, {metric of the training: its step}) of a complete run."""
        values, steps = newest(self.folder / "metrics.jsonl", metrics)
        found = _read_json(self._measured)
        for function in self.functions:
            measured = found[function.path]["values"]
            if twice := sorted(values.keys() & measured.keys()):
                raise DataError(f"{function.path} returns {twice[0]}, which is measured already. Rename it there.")
            values |= measured
        return values, steps

    def unmeasured(self) -> list[MeasuringFunction]:
        """Functions that have yet to be called, as they are now."""
        found = _read_json(self._measured)
        return [function for function in self.functions if found.get(function.path, {}).get("source") != function.source]

    def measure(self, function: MeasuringFunction) -> None:
        """Call it and write down what it returns."""
        done = _read_json(self._measured) | {function.path: {"source": function.source, "values": function.call(self.folder)}}
        write_text(self._measured, json.dumps(done, indent=1) + "\n")

    @property
    def _measured(self) -> Path:
        return self.folder / "measured.json"


def plan(study: Study) -> list[Job]:
    """Seed by seed, so that a comparison that was stopped has as many seeds of one method as of another."""
    runs = Path(study.out) / "runs"
    functions = tuple(map(MeasuringFunction.of, study.functions))
    return [
        Job(name, config.replace(out=str(runs / name / f"seed-{seed}"), seed=seed), functions)
        for seed in study.seeds
        for name, config in study.methods.items()
    ]


def work(job: Job) -> None:
    """Train, going on from a checkpoint where there is one, and call the functions that have not measured yet."""
    from accelerate.utils import set_seed

    if not job.trained:
        from humanline.run import train

        train(job.config.replace(resume=(job.folder / "config.yaml").is_file()))
    for function in job.unmeasured():
        set_seed(job.config.seed % 2**32)  # the same draws, whatever this process did before
        job.measure(function)


def write_text(path: Path, text: str) -> None:
    """A reader sees the old file or the new one."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _read_json(path: Path) -> dict[str, Any]:
    """{} where there is no such file."""
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}). Remove it: what it holds is made again.") from error


def _planned(path: Path) -> int | None:
    """The last step of the run, which it writes down when it begins."""
    return int(_read_json(path)["steps"]["last"]) if path.is_file() else None


def _last_step(path: Path) -> int:
    """Of the last complete line; 0 = none yet."""
    try:
        with open(path, "rb") as file:
            file.seek(-min(TAIL, os.fstat(file.fileno()).st_size), os.SEEK_END)
            complete = file.read().rpartition(b"\n")[0]
    except FileNotFoundError:
        return 0
    last = complete.rpartition(b"\n")[2]
    return int(json.loads(last)["step"]) if last else 0
