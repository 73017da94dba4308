"""`humanline demo`: offline GRPO, DPO and KTO with and without humanline, and two controls, on task "score".

    OUT/results.json   every run, mean ± std, settings, versions
        report.html    figure, table and settings on one page
        figure.svg     the picture alone
        data/ runs/    derived data files; one folder per run. A run that is finished is not done again.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from humanline.embedded.jobs import Job, prepare_worker, run
from humanline.embedded.methods import METHODS, STEPS, Method, MethodName
from humanline.errors import CheckpointError, ConfigError, TrainingError

HELD_OUT_ROWS = 1500
QUICK_STEPS, QUICK_ROWS = 6, 100


@dataclass(frozen=True)
class DemoConfig:
    """Offline GRPO, DPO and KTO with and without humanline, and two controls: one packaged data set, a tiny model, minutes on two cores."""

    out: Path = Path("demo-run")
    """output folder; finished runs in it are kept and not done again"""
    seeds: int = 3
    """orders of the data per method, ≥ 1"""
    processes: int | None = None
    """runs at the same time, ≥ 1, one core each; None = one per core"""
    methods: tuple[MethodName, ...] = tuple(METHODS)
    """what to compare"""
    quick: bool = False
    """a few steps per run, one seed: only shows that everything works"""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds is {self.seeds}: expected a number of runs per method from 1 on.")
        if self.processes is not None and self.processes < 1:
            raise ConfigError(f"processes is {self.processes}: expected a number of worker processes from 1 on.")
        unknown = [name for name in self.methods if name not in METHODS]
        if unknown or not self.methods:
            raise ConfigError(f"methods are {list(self.methods)}: expected at least one of {', '.join(METHODS)}.")


def main(words: Sequence[str] | None = None) -> int:
    """The command line; the exit status."""
    run_demo(tyro.cli(DemoConfig, args=words, prog="humanline demo", config=(tyro.conf.FlagCreatePairsOff,)))
    return 0


def run_demo(config: DemoConfig) -> Path:
    """Do all runs that are not finished, then write table, results.json, figure and report. Returns the report's path."""
    from rich.console import Console

    from humanline.embedded import assets
    from humanline.embedded.groups import read_groups, write_derived

    packaged = assets.verify()
    out = _output_folder(config.out)
    methods = [METHODS[name] for name in METHODS if name in config.methods]
    write_derived(read_groups(assets.GROUPS), out / "data", sorted({method.data for method in methods} - {"groups"}))
    jobs = _jobs(config, out, methods, packaged)
    finished = {job: result for job in jobs if (result := job.result()) is not None}
    console = Console()
    console.print(f"{len(jobs)} runs in {out.resolve()}" + (f", {len(finished)} of them finished before" if finished else ""), highlight=False)
    _run_all(jobs, finished, console, _workers(config, len(jobs) - len(finished)))
    return _write(config, methods, [finished[job] for job in jobs], packaged, out, console)


def _output_folder(out: Path) -> Path:
    try:
        (out / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"output folder {out} cannot be written: {error}. Choose another --out.") from error
    return out


def _jobs(config: DemoConfig, out: Path, methods: Sequence[Method], packaged: dict[str, Any]) -> list[Job]:
    """Seed by seed, so that an unfinished demo has all methods at equal numbers of seeds, as far as it got."""
    steps, rows, seeds = (QUICK_STEPS, QUICK_ROWS, 1) if config.quick else (STEPS, packaged["held_out"]["prompts"], config.seeds)
    fingerprint = packaged["files"]["groups.parquet"]["sha256"]
    return [Job(method, seed, steps, rows, out, fingerprint) for seed in range(seeds) for method in methods]


def _workers(config: DemoConfig, jobs: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(config.processes or cores, jobs))


def _run_all(jobs: Sequence[Job], finished: dict[Job, dict[str, Any]], console: Console, workers: int) -> None:
    """Run what is missing in `workers` processes and add it to `finished`. The first error ends it; finished runs stay."""
    from humanline.embedded.progress import REFRESH, Progress

    missing = [job for job in jobs if job not in finished]
    if not missing:
        return
    executor = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=prepare_worker)
    try:
        waiting: dict[Future[dict[str, Any]], Job] = {executor.submit(run, job): job for job in missing}
        with Progress(jobs, finished, console=console) as progress:
            while waiting:
                done, _ = wait(waiting, timeout=REFRESH, return_when=FIRST_COMPLETED)
                for future in done:
                    job = waiting.pop(future)
                    finished[job] = future.result()
                    progress.report(job)
                progress.tick()
    except BrokenProcessPool as error:
        raise TrainingError(
            "a worker process of the demo died, usually for lack of memory. Finished runs are kept: "
            "run the same command again, with --processes 1."
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _write(
    config: DemoConfig, methods: Sequence[Method], runs: Sequence[dict[str, Any]], packaged: dict[str, Any], out: Path, console: Console
) -> Path:
    from humanline.embedded import assets, figure, page
    from humanline.embedded.progress import final_table
    from humanline.embedded.results import summarise, write

    steps, rows, seeds = (QUICK_STEPS, QUICK_ROWS, 1) if config.quick else (STEPS, packaged["held_out"]["prompts"], config.seeds)
    settings = {
        "steps": steps,
    }
